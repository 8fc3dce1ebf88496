"""In Triton's interpreter, functions of ``triton.language`` are replaced once a launch.

It replaces them again in every call that a kernel makes of a function of its own, finds nothing
left to replace, and spends about half of the time of these tests on looking.
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


if INTERPRETED:
    _replace_once_a_launch()
