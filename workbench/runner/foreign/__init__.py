"""Operators of ``kernels`` inside modules of other libraries and of users' files.

A *rule* recognizes what an operator computes, by class and structure, and proposes a replacement.
The replacement counts only if it agrees with the original in FP64: outputs and gradients, for
inputs of several scales, on a small copy of the module. Otherwise the original stays.

A *patch* is what one rule replaced in one model. It changes attributes of instances only, never a
class or a module of Python, so that other models stay as they are. ``Patch.undo`` restores it.
"""
