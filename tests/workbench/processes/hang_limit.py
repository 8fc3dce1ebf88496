"""The longest that a test waits for something that must happen.

It only ends a wait that nothing would end. A machine of any speed needs less.
"""

HANG_S = 600.0
