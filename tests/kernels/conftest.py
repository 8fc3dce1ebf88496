"""Caches for Triton's interpreter: repeated work with the same result is done once.

The interpreter replaces functions of ``triton.language`` in every call from a kernel to one of its
own functions, finds nothing left to replace, and spends about half of the time of these tests on
the search. It spends a third of the other half on types: it derives the meaning of a shape for
every value of every operation. Here functions are replaced once per launch, and shapes and dtypes
are cached. Operands that are tensors already are not examined again for what else they may be. The
interpreter also computes each sum of integers in 64 bits, for an assertion that it omits unless it
debugs; here both are omitted. Results are not changed.
"""

import inspect

from kernels.core.triton_helpers import INTERPRETED


def _replace_once_a_launch() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    replace = interpreter._patch_lang
    checks_semantic = tl.core.builtin(lambda: None).__code__
    # names under which a kernel's module has the functions
    names_by_kernel: dict[object, frozenset[str]] = {}
    replaced: set[str] = set()  # by the current launch
    members: dict[object, list[tuple[str, object]]] = {}  # what is replaced, and by what

    class Nothing:
        def restore(self) -> None:
            pass

    def once(kernel):
        if kernel not in names_by_kernel:
            seen = {id(value) for value in kernel.__globals__.values()}
            modules = {"tl": tl, "core": tl.core}
            names_by_kernel[kernel] = frozenset(
                n for n, module in modules.items() if id(module) in seen
            )
        if names_by_kernel[kernel] <= replaced:
            return Nothing()
        outermost = not replaced
        scope = replace(kernel)
        replaced.update(names_by_kernel[kernel])
        if outermost:
            restore = scope.restore

            def all_restored() -> None:
                replaced.clear()
                restore()

            scope.restore = all_restored
        return scope

    def with_semantic(member):
        semantic = interpreter.interpreter_semantic
        if member.__code__ is checks_semantic:  # and nothing else
            member = member.__wrapped__

        def computed(*args, **kwargs):
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        return computed

    def replace_members(module, builder, scope):
        if module not in members:
            builtins = inspect.getmembers(module, tl.core.is_builtin)
            members[module] = [(name, with_semantic(member)) for name, member in builtins]
        for name, computed in members[module]:
            scope.set_attr(module, name, computed)

    interpreter._patch_lang, interpreter._patch_builtin = once, replace_members


def _remember_types() -> None:
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    blocks: dict[object, dict[str, object]] = {}  # attributes of a block type
    shapes: dict[object, tuple[object, object]] = {}  # a tensor's shape and number of elements
    dtypes: dict[str, object] = {}  # of numpy, by Triton's name
    block_init, tensor_init = tl.block_type.__init__, tl.tensor.__init__
    results: dict[object, object] = {}  # dtype of the result, by both operands
    common: dict[object, list[int]] = {}  # shape of the result, by both operands
    alike_blocks: dict[object, object] = {}
    with_elements = tl.block_type.with_element_ty
    np_dtype, broadcast = interpreter._get_np_dtype, TritonSemantic.broadcast_impl_value
    cast, computed_in = TritonSemantic.cast, TritonSemantic.computation_type_impl
    assert_in_range = TritonSemantic.binary_op_sanitize_overflow_impl
    check_types, unwrap = TritonSemantic.binary_op_type_checking_impl, tl.core._unwrap_if_constexpr
    has_fitting_size = interpreter._validate_np_data_size
    fitting: dict[object, bool] = {}  # by the type's name and the bytes of an element
    plain = {tl.tensor, tl.dtype, int, float, bool, type(None)}  # kinds that contain no constant

    def block(self, element_ty, shape):
        if element_ty.is_ptr():  # two pointer types may have one name
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
        if lhs.type.is_block() and rhs.type.is_block():
            shapes = lhs.type.shape.values, rhs.type.shape.values
            if shapes[0] == shapes[1]:
                return lhs, rhs
            key = tuple(map(tuple, shapes))
            if key not in common:
                common[key] = broadcast(self, lhs, rhs)[0].type.shape.values
            return [
                x if shape == common[key] else in_shape(self, x, common[key])
                for x, shape in zip((lhs, rhs), shapes, strict=True)
            ]
        return broadcast(self, lhs, rhs)

    def in_shape(self, x, shape):
        handle = self.builder.create_broadcast(x.handle, shape)
        return self.make_tensor(handle, tl.block_type(x.type.scalar, shape))

    def of_elements(self, scalar):
        if scalar.is_ptr():
            return with_elements(self, scalar)
        key = (scalar.name, *self.shape.values)
        if key not in alike_blocks:
            alike_blocks[key] = with_elements(self, scalar)
        return alike_blocks[key]

    def as_is(self, input, dst_ty, *rounding):
        if dst_ty is input.type.scalar:
            return input
        return cast(self, input, dst_ty, *rounding)

    def of_both(self, left, left_is_scalar, right, right_is_scalar, div_or_mod):
        key = (left.name, left_is_scalar, right.name, right_is_scalar, div_or_mod)
        if key not in results:
            results[key] = computed_in(
                self, left, left_is_scalar, right, right_is_scalar, div_or_mod
            )
        return results[key]

    def of_operands(
        self, lhs, rhs, left_ptr=False, right_ptr=False, arithmetic=True, div_or_mod=False
    ):
        if not (arithmetic and type(lhs) is tl.tensor and type(rhs) is tl.tensor):
            return check_types(self, lhs, rhs, left_ptr, right_ptr, arithmetic, div_or_mod)
        left, right = lhs.dtype, rhs.dtype
        if left.is_ptr() or right.is_ptr():
            return check_types(self, lhs, rhs, left_ptr, right_ptr, arithmetic, div_or_mod)
        dtype = of_both(self, left, False, right, False, div_or_mod)
        return alike(self, as_is(self, lhs, dtype), as_is(self, rhs, dtype))

    def of_constant(value):
        return value if type(value) in plain else unwrap(value)

    def has_size(data, dtype):
        key = dtype.name, data.itemsize
        if key not in fitting:
            fitting[key] = has_fitting_size(data, dtype)
        return fitting[key]

    def where_it_debugs(self, *operation):
        if self.builder.options.debug:
            assert_in_range(self, *operation)

    tl.block_type.__init__, tl.tensor.__init__ = block, tensor
    tl.block_type.with_element_ty = of_elements
    TritonSemantic.cast, TritonSemantic.computation_type_impl = as_is, of_both
    TritonSemantic.binary_op_sanitize_overflow_impl = where_it_debugs
    interpreter._get_np_dtype, TritonSemantic.broadcast_impl_value = of_numpy, alike
    interpreter._validate_np_data_size = has_size
    TritonSemantic.binary_op_type_checking_impl = of_operands
    tl.core._unwrap_if_constexpr = of_constant


if INTERPRETED:
    _replace_once_a_launch()
    _remember_types()
