"""In Triton's interpreter, what comes out the same each time is worked out once.

It replaces functions of ``triton.language`` again in every call that a kernel makes of a function
of its own, finds nothing left to replace, and spends about half of the time of these tests on
looking. Of the other half it spends a third on types: what a shape means is worked out for every
value of every operation. Here functions are replaced once a launch, and shapes and dtypes are
remembered; which numbers are computed, and how, is left as it is.
"""

from kernels._triton import INTERPRETED


def _replace_once_a_launch() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    replace = interpreter._patch_lang
    places: dict[object, frozenset[str]] = {}  # where a kernel's module has the functions
    replaced: set[str] = set()  # by the launch in progress

    class Nothing:
        def restore(self) -> None:
            pass

    def once(kernel):
        if kernel not in places:
            seen = {id(value) for value in kernel.__globals__.values()}
            found = {"tl": tl, "core": tl.core}
            places[kernel] = frozenset(n for n, module in found.items() if id(module) in seen)
        if places[kernel] <= replaced:
            return Nothing()
        outermost = not replaced
        scope = replace(kernel)
        replaced.update(places[kernel])
        if outermost:
            restore = scope.restore

            def all_restored() -> None:
                replaced.clear()
                restore()

            scope.restore = all_restored
        return scope

    interpreter._patch_lang = once


def _remember_types() -> None:
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    blocks: dict[object, dict[str, object]] = {}  # attributes of a type of blocks
    shapes: dict[object, tuple[object, object]] = {}  # a tensor's shape and number of elements
    dtypes: dict[str, object] = {}  # of numpy, by Triton's name
    block_init, tensor_init = tl.block_type.__init__, tl.tensor.__init__
    np_dtype, broadcast = interpreter._get_np_dtype, TritonSemantic.broadcast_impl_value
    cast = TritonSemantic.cast

    def block(self, element_ty, shape):
        if element_ty.is_ptr():  # of which two may have one name
            return block_init(self, element_ty, shape)
        key = (element_ty.name, *shape)
        if key in blocks:
            vars(self).update(blocks[key])
        else:
            block_init(self, element_ty, shape)
            blocks[key] = dict(vars(self))

    def tensor(self, handle, type):
        key = tuple(type.shape.values) if type.is_block() else ()
        if key in shapes:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = shapes[key]
        else:
            tensor_init(self, handle, type)
            shapes[key] = self.shape, self.numel

    def of_numpy(dtype):
        name = dtype.scalar.name
        if name not in dtypes:
            dtypes[name] = np_dtype(dtype)
        return dtypes[name]

    def alike(self, lhs, rhs):
        one, other = lhs.type, rhs.type
        if one.is_block() and other.is_block() and one.shape.values == other.shape.values:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    def as_is(self, input, dst_ty, *rounding):
        if dst_ty is input.type.scalar:
            return input
        return cast(self, input, dst_ty, *rounding)

    tl.block_type.__init__, tl.tensor.__init__ = block, tensor
    TritonSemantic.cast = as_is
    interpreter._get_np_dtype, TritonSemantic.broadcast_impl_value = of_numpy, alike


if INTERPRETED:
    _replace_once_a_launch()
    _remember_types()
