"""A bit generator for `numpy.random.Generator`, whose bits nobody can predict.

NumPy calls a C function for each number. Ours takes a word from a buffer and overwrites it with
zero. The buffer holds the key stream of AES-256 under a key of the operating system. Each key fills
the buffer once and is overwritten too.

A refill calls C functions of Python, but runs no Python code. So it runs no signal handler, and it
raises nothing, which NumPy could not pass on. If it fails, because memory is short, 32 words come
from the operating system. That call does not fail on a system where it has worked; if it ever did,
the draw would wait. No draw returns weaker bits.

LLVM compiles the functions directly. Numba would take seconds, and more time for each number.
"""

import ctypes
import mmap
import operator
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import repeat
from typing import Any, Final, NoReturn, SupportsIndex
from weakref import WeakSet

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from llvmlite import binding, ir
from numpy.random.bit_generator import SeedlessSeedSequence

from dpnoise.core.entropy import AES, KEY_BYTES, check_cipher
from dpnoise.core.errors import ArgumentError, SecretError
from dpnoise.core.forks import wiped_memory
from dpnoise.core.kernel_table import import_uninterrupted

__all__ = ["SecureBitGenerator"]

# The parts of a buffer: the number of words left, whether a refill is going on, the process that
# filled it, the key during a refill, the words, and the cipher's tag. The child of a fork finds
# zeros, or the number of another process.
_LEFT, _REFILLING, _PROCESS, _KEY, _FIRST = 0, 1, 2, 3, 7
_WORDS: Final = 2**15  # 256 KiB, which the second cache of most processors holds.
_WORD_BYTES: Final = 8
_TAG_BYTES: Final = 16
_STREAM_BYTES: Final = _WORD_BYTES * _WORDS
_BUFFER_BYTES: Final = _WORD_BYTES * _FIRST + _STREAM_BYTES + _TAG_BYTES
_ONE: Final = 0x3FF0000000000000  # The bits of the float 1.
_SYSTEM_WORDS: Final = 32  # The most that a call of getentropy gives.

_Untyped = Any  # llvmlite publishes no types.
_INT, _WORD, _DOUBLE, _VOID = ir.IntType(32), ir.IntType(64), ir.DoubleType(), ir.VoidType()
_POINTER: Final = _WORD.as_pointer()

_NONCE_AND_ZEROS: Final = (bytes(12), bytes(_STREAM_BYTES), None)
_FILLS_BUFFERS: Final = hasattr(
    AESGCM, "encrypt_into"
)  # Older versions of cryptography return bytes.
_WINDOWS: Final = sys.platform == "win32"
_ENTROPY_GIVEN: Final = 1 if _WINDOWS else 0
# Functions of C: the type of the result, then those of the arguments. Addresses are words.
_FUNCTIONS: Final = {
    "PyGILState_Ensure": (_INT,),
    "PyGILState_Release": (_VOID, _INT),
    "PyIter_Next": (_WORD, _WORD),
    "PyBytes_AsString": (_WORD, _WORD),
    "Py_DecRef": (_VOID, _WORD),
    "PyErr_Clear": (_VOID,),
    "memcpy": (_WORD, _WORD, _WORD, _WORD),
    "memset": (_WORD, _WORD, _INT, _WORD),
    "getentropy": (_INT, _WORD, _WORD),
    "getpid": (_INT,),
}


def _c_function(name: str) -> Any:
    """Return a function of Python's or of the system's library."""
    if name.startswith("Py"):
        return getattr(ctypes.pythonapi, name)
    if not _WINDOWS:
        return getattr(ctypes.CDLL(None), name)
    if name == "getentropy":
        return ctypes.CDLL("bcryptprimitives").ProcessPrng
    return getattr(ctypes.CDLL("ucrtbase"), name)


@cache
def _compares_processes() -> bool:
    """Return whether each draw compares process numbers, because the system wipes no memory."""
    return hasattr(os, "fork") and wiped_memory(mmap.PAGESIZE) is None


def _fillings(buffer: memoryview) -> Iterator[object]:
    """Return an iterator whose steps fill a buffer under its key. They run no Python code.

    AES in GCM, without its tag, is counter mode from block 2 on.
    """
    key, stream = buffer[8 * _KEY : 8 * _FIRST], buffer[8 * _FIRST :]
    if _FILLS_BUFFERS:
        encrypt = operator.methodcaller("encrypt_into", *_NONCE_AND_ZEROS, stream)
    else:
        encrypt = operator.methodcaller("encrypt", *_NONCE_AND_ZEROS)
    return map(encrypt, map(AESGCM, repeat(key)))


class _State(ctypes.Structure):
    """What NumPy passes to the functions. The child of a fork finds it as in the parent."""

    _fields_ = (("buffer", ctypes.c_void_p), ("fillings", ctypes.py_object))


class _Code(ir.IRBuilder):  # type: ignore[misc] # llvmlite publishes no types
    """Writes the code of a function of a state."""

    def __init__(self, module: _Untyped, name: str, result: _Untyped) -> None:
        kind = ir.FunctionType(result, [_POINTER])
        self.written = ir.Function(module, kind, name)
        super().__init__(self.written.append_basic_block())
        self.state = self.written.args[0]
        self.buffer = self.inttoptr(self.load(self.state), _POINTER)

    def place(self, index: _Untyped) -> _Untyped:
        """Return a pointer to a word of the buffer."""
        return self.gep(self.buffer, [_WORD(index) if isinstance(index, int) else index])

    def c(self, name: str, *arguments: _Untyped) -> _Untyped:
        """Call a function of C. A number is a constant."""
        result, *kinds = _FUNCTIONS[name]
        address = ctypes.cast(_c_function(name), ctypes.c_void_p).value
        values = [
            kind(value) if isinstance(value, int)
            else self.ptrtoint(value, _WORD) if value.type == _POINTER
            else value
            for kind, value in zip(kinds, arguments, strict=True)
        ]  # fmt: skip
        pointer = ir.FunctionType(result, kinds).as_pointer()
        return self.call(self.inttoptr(_WORD(address), pointer), values)

    def process(self) -> _Untyped:
        """Return the number of the process, or 0 if the system wipes the buffer."""
        return self.zext(self.c("getpid"), _WORD) if _compares_processes() else _WORD(0)

    def is_empty(self, left: _Untyped) -> _Untyped:
        """Return whether the buffer has no words for this process."""
        empty = self.icmp_unsigned("==", left, _WORD(0))
        if _compares_processes():
            stored = self.load(self.place(_PROCESS))
            empty = self.or_(empty, self.icmp_unsigned("!=", stored, self.process()))
        return empty

    def take(self, left: _Untyped) -> _Untyped:
        """Take the last of the words that are left."""
        rest = self.sub(left, _WORD(1))
        place = self.place(self.add(rest, _WORD(_FIRST)))
        word = self.load(place)
        self.store(_WORD(0), place)
        self.store(rest, self.place(_LEFT))
        return word


# Its lines are the steps of one function of machine code, in their order.
def _write_refilled_word(module: _Untyped) -> _Untyped:
    """Write the function that fills an empty buffer and returns a word.

    In Python 3.11 an allocation may run finalizers. If one of them drew from this buffer, or forked
    where the system wipes it, then _REFILLING is 0, and nothing of this stream may be used.
    Elsewhere the process that is stored reveals a fork.
    """
    code = _Code(module, "refilled_word", _WORD)
    left, refilling, process, key, first = map(
        code.place, (_LEFT, _REFILLING, _PROCESS, _KEY, _FIRST)
    )
    refill = code.append_basic_block()
    code.branch(refill)
    code.position_at_end(refill)
    gil = code.c("PyGILState_Ensure")
    code.store(_WORD(0), left)
    code.store(code.process(), process)
    code.store(_WORD(1), refilling)
    status = code.c("getentropy", key, KEY_BYTES)
    given = code.icmp_unsigned("==", status, _INT(_ENTROPY_GIVEN))
    fillings = code.load(code.gep(code.state, [_WORD(1)]))
    filled = code.c("PyIter_Next", fillings)
    made = code.icmp_unsigned("!=", filled, _WORD(0))
    code.c("memset", key, 0, KEY_BYTES)
    code.c("memset", code.place(_FIRST + _WORDS), 0, _TAG_BYTES)
    if not _FILLS_BUFFERS:
        with code.if_then(made):
            stream = code.c("PyBytes_AsString", filled)
            code.c("memcpy", first, stream, _STREAM_BYTES)
            code.c("memset", stream, 0, _STREAM_BYTES)
    with code.if_then(made):
        code.c("Py_DecRef", filled)
    undisturbed = code.icmp_unsigned("==", code.load(refilling), _WORD(1))
    usable = code.and_(code.and_(given, made), undisturbed)
    code.store(code.select(usable, _WORD(_WORDS), _WORD(0)), left)
    code.store(_WORD(0), refilling)
    code.c("PyErr_Clear")
    code.c("PyGILState_Release", gil)
    with code.if_then(code.is_empty(code.load(left)), likely=False):
        code.store(code.process(), process)
        status = code.c("getentropy", first, _WORD_BYTES * _SYSTEM_WORDS)
        given = code.icmp_unsigned("==", status, _INT(_ENTROPY_GIVEN))
        code.store(code.select(given, _WORD(_SYSTEM_WORDS), _WORD(0)), left)
    taking = code.append_basic_block()
    left = code.load(left)
    code.cbranch(code.is_empty(left), refill, taking)
    code.position_at_end(taking)
    code.ret(code.take(left))
    return code.written


def _double(code: _Code, word: _Untyped) -> _Untyped:
    """Write the first 53 bits of a word as a multiple of 2^-53, which is NumPy's definition.

    52 of them are the digits of a float from 1 to 2. Then 1 is subtracted, or the float before 1 if
    the last bit is set. That is exact, and quicker than a conversion of an integer.
    """
    upper = code.or_(code.lshr(word, _WORD(12)), _WORD(_ONE))
    lower = code.sub(_WORD(_ONE), code.and_(code.lshr(word, _WORD(11)), _WORD(1)))
    return code.fsub(code.bitcast(upper, _DOUBLE), code.bitcast(lower, _DOUBLE))


# What NumPy calls for a number: the type of its result, and how a word becomes one.
_DRAWS: Final[dict[str, tuple[_Untyped, Callable[[_Code, _Untyped], _Untyped]]]] = {
    "next_uint64": (_WORD, lambda _, word: word),
    "next_uint32": (_INT, lambda code, word: code.trunc(code.lshr(word, _WORD(32)), _INT)),
    "next_double": (_DOUBLE, _double),
    "next_raw": (_WORD, lambda _, word: word),
}


def _compile() -> _Untyped:
    """Return the compiled functions, in an object that must live as long as they are used."""
    check_cipher(AES)
    if _c_function("getentropy")(ctypes.byref(ctypes.c_uint64()), 8) != _ENTROPY_GIVEN:
        raise OSError("The operating system gave no random bytes, so nothing can be drawn.")
    module = ir.Module()
    refilled_word = _write_refilled_word(module)
    for name, (result, number) in _DRAWS.items():
        code = _Code(module, name, result)
        left = code.load(code.place(_LEFT))
        with code.if_then(code.is_empty(left), likely=False):
            code.ret(number(code, code.call(refilled_word, [code.state])))
        code.ret(number(code, code.take(left)))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple()).create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), target)
    engine.finalize_object()
    return engine


@cache
def _machine_code() -> _Untyped:
    return import_uninterrupted(_compile)


class _Interface(ctypes.Structure):
    """NumPy's bitgen_t: a buffer, and the functions that draw from it."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("state", *_DRAWS))


_interface_address: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_locks: Final[WeakSet[Any]] = WeakSet()


def _free_locks() -> None:
    """Free the locks of threads that do not exist in the child of a fork."""
    for lock in list(_locks):
        if not getattr(lock, "_is_owned", bool)():
            lock._at_fork_reinit()  # noqa: SLF001 - as Python does for its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


class SecureBitGenerator(np.random.BitGenerator):
    """Random bits for `numpy.random.Generator` that nobody can predict or repeat.

    It works wherever NumPy's own bit generators do. It has no seed and no state: reading, setting,
    copying or pickling the state raises SecretError. Threads may share it, and a child of a fork
    draws other numbers. `spawn` gives independent generators.

    NumPy's samplers stay as they are: a value plus their noise keeps no privacy guarantee. Release
    values with a mechanism, such as `dpnoise.LaplaceMechanism`.

    Examples
    --------
    >>> import numpy as np
    >>> from dpnoise.integrations.numpy import SecureBitGenerator
    >>> rng = np.random.Generator(SecureBitGenerator())
    >>> rng.random(size=3).shape
    (3,)
    """

    def __init__(self, seed: None = None) -> None:
        if seed is not None:
            raise ArgumentError(
                "SecureBitGenerator takes no seed, because a seed makes the numbers predictable. "
                "Call SecureBitGenerator()."
            )
        super().__init__(SeedlessSeedSequence())  # type: ignore[arg-type] # by NumPy's docs it may
        self._memory = wiped_memory(_BUFFER_BYTES) or bytearray(_BUFFER_BYTES)
        buffer = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._passed = _State(buffer, _fillings(memoryview(self._memory)))
        self._code = _machine_code()
        interface = _Interface.from_address(_interface_address(self.capsule, b"BitGenerator"))
        interface.state = ctypes.addressof(self._passed)
        for name in _DRAWS:
            setattr(interface, name, self._code.get_function_address(name))
        _locks.add(self.lock)

    def spawn(self, n_children: SupportsIndex) -> "list[SecureBitGenerator]":
        """Return generators that are independent of this one and of each other."""
        return [type(self)() for _ in range(operator.index(n_children))]

    def _refuse(self, *_: object) -> NoReturn:
        raise SecretError(
            "SecureBitGenerator has no state to read, set, copy or pickle. "
            "Make another one where you need it: SecureBitGenerator()."
        )

    state = property(_refuse, _refuse)
    __getstate__ = __setstate__ = __reduce__ = _refuse
