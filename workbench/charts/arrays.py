"""The array type of the plots' signatures: any dtype, its shape in the docstring."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
