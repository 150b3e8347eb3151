"""A bit generator for `numpy.random.Generator`, whose bits nobody can predict.

NumPy calls a C function for each number. Ours takes a word from a buffer and overwrites it with
zero. The buffer holds the key stream of AES-256 under a key of the operating system. Each key fills
the buffer once and is overwritten too.

A refill calls C functions of Python, but runs no Python code. So it runs no signal handler, and it
raises nothing, which NumPy could not pass on. If it fails, because memory is short, the word comes
from the operating system. That call does not fail on a system where it has worked; if it ever did,
the draw would wait. No draw returns weaker bits.

LLVM compiles the functions directly. Numba would take seconds, and more time for each number.
"""

import ctypes
import mmap
import operator
import os
import sys
from collections.abc import Callable
from functools import cache
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

# The fields of a buffer: the number of words left, whether a refill is going on, the process that
# filled it, and the words. The child of a fork finds zeros, or the number of another process.
_LEFT, _REFILLING, _PROCESS, _FIRST = range(4)
_WORDS: Final = 2**15  # Half of them would cost 3 % more time for each draw.
_WORD_BYTES: Final = 8
_BUFFER_BYTES: Final = _WORD_BYTES * (_FIRST + _WORDS)
_ATTEMPTS: Final = 3  # Only a finalizer that forks or draws during a refill spoils an attempt.
_FLOAT_BITS: Final = 53

_Untyped = Any  # llvmlite publishes no types.
_INT, _WORD, _DOUBLE, _VOID = ir.IntType(32), ir.IntType(64), ir.DoubleType(), ir.VoidType()

# The Python objects of a refill. AES in GCM, without its tag, is counter mode from block 2 on.
_OBJECTS: Final[dict[str, object]] = {
    "urandom": os.urandom,
    "key size": KEY_BYTES,
    "cipher": AESGCM,
    "encrypt": "encrypt",
    "nonce and zeros": (bytes(12), bytes(_WORD_BYTES * _WORDS), None),
}
# Functions of C: the type of the result, then those of the arguments. Pointers are words.
_FUNCTIONS: Final = {
    "PyGILState_Ensure": (_INT,),
    "PyGILState_Release": (_VOID, _INT),
    "PyObject_CallOneArg": (_WORD, _WORD, _WORD),
    "PyObject_Call": (_WORD, _WORD, _WORD, _WORD),
    "PyObject_GetAttr": (_WORD, _WORD, _WORD),
    "PyBytes_AsString": (_WORD, _WORD),
    "Py_DecRef": (_VOID, _WORD),
    "PyErr_Clear": (_VOID,),
    "memcpy": (_WORD, _WORD, _WORD, _WORD),
    "memset": (_WORD, _WORD, _INT, _WORD),
    "getentropy": (_INT, _WORD, _WORD),
    "getpid": (_INT,),
}
_WINDOWS: Final = sys.platform == "win32"
_ENTROPY_GIVEN: Final = 1 if _WINDOWS else 0


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


class _Code:
    """Writes the code of a function of a buffer."""

    def __init__(self, module: _Untyped, name: str, result: _Untyped) -> None:
        kind = ir.FunctionType(result, [_WORD.as_pointer()])
        self.function = ir.Function(module, kind, name)
        self.build = ir.IRBuilder(self.function.append_basic_block())
        self.buffer = self.function.args[0]

    def field(self, place: _Untyped) -> _Untyped:
        """Return a pointer to a field of the buffer."""
        return self.build.gep(self.buffer, [_WORD(place) if isinstance(place, int) else place])

    def load(self, place: _Untyped) -> _Untyped:
        """Return a field of the buffer."""
        return self.build.load(self.field(place))

    def store(self, value: _Untyped, place: _Untyped) -> None:
        """Set a field of the buffer."""
        self.build.store(_WORD(value) if isinstance(value, int) else value, self.field(place))

    def equal(self, value: _Untyped, other: _Untyped) -> _Untyped:
        """Return whether two words are equal."""
        constant = value.type(other) if isinstance(other, int) else other
        return self.build.icmp_unsigned("==", value, constant)

    def if_made(self, pointer: _Untyped) -> _Untyped:
        """Write code in a block of `with` for the case that a pointer is not null."""
        return self.build.if_then(self.build.not_(self.equal(pointer, 0)))

    def call(self, name: str, *arguments: _Untyped) -> _Untyped:
        """Call a function of C. A number is a constant, and a text names one of _OBJECTS."""
        result, *kinds = _FUNCTIONS[name]
        address = ctypes.cast(_c_function(name), ctypes.c_void_p).value
        values = [
            kind(id(_OBJECTS[value]) if isinstance(value, str) else value)
            if isinstance(value, str | int)
            else value
            for kind, value in zip(kinds, arguments, strict=True)
        ]
        pointer = ir.FunctionType(result, kinds).as_pointer()
        return self.build.call(self.build.inttoptr(_WORD(address), pointer), values)

    def process(self) -> _Untyped:
        """Return the number of the process, or 0 if the system wipes the buffer."""
        return self.build.zext(self.call("getpid"), _WORD) if _compares_processes() else _WORD(0)

    def is_empty(self) -> _Untyped:
        """Return whether the buffer has no words for this process."""
        empty = self.equal(self.load(_LEFT), 0)
        if _compares_processes():
            same = self.equal(self.load(_PROCESS), self.process())
            empty = self.build.or_(empty, self.build.not_(same))
        return empty

    def take(self) -> _Untyped:
        """Take the last word of a buffer that is not empty."""
        left = self.build.sub(self.load(_LEFT), _WORD(1))
        place = self.build.add(left, _WORD(_FIRST))
        word = self.load(place)
        self.store(0, place)
        self.store(left, _LEFT)
        return word


def _write_refill(module: _Untyped) -> _Untyped:
    """Write the function that fills a buffer, or leaves it empty if something fails."""
    code = _Code(module, "refill", _VOID)
    state = code.call("PyGILState_Ensure")
    process = code.process()
    code.store(1, _REFILLING)
    key = code.call("PyObject_CallOneArg", "urandom", "key size")
    with code.if_made(key):
        cipher = code.call("PyObject_CallOneArg", "cipher", key)
        with code.if_made(cipher):
            encrypt = code.call("PyObject_GetAttr", cipher, "encrypt")
            with code.if_made(encrypt):
                stream = code.call("PyObject_Call", encrypt, "nonce and zeros", 0)
                with code.if_made(stream):
                    _write_copy(code, stream, process)
                    code.call("Py_DecRef", stream)
                code.call("Py_DecRef", encrypt)
            code.call("Py_DecRef", cipher)
        code.call("memset", code.call("PyBytes_AsString", key), 0, KEY_BYTES)
        code.call("Py_DecRef", key)
    code.store(0, _REFILLING)
    code.call("PyErr_Clear")
    code.call("PyGILState_Release", state)
    code.build.ret_void()
    return code.function


def _write_copy(code: _Code, stream: _Untyped, process: _Untyped) -> None:
    """Write the move of a key stream to the buffer.

    In Python 3.11 an allocation may run finalizers. If one of them drew from this buffer, or forked
    where the system wipes it, then _REFILLING is 0. Elsewhere the process that is stored reveals a
    fork.
    """
    data = code.call("PyBytes_AsString", stream)
    with code.build.if_then(code.equal(code.load(_REFILLING), 1)):
        words = code.build.ptrtoint(code.field(_FIRST), _WORD)
        code.call("memcpy", words, data, _WORD_BYTES * _WORDS)
        code.store(process, _PROCESS)
        code.store(_WORDS, _LEFT)
    code.call("memset", data, 0, _WORD_BYTES * _WORDS)


def _write_refilled_word(module: _Untyped) -> _Untyped:
    """Write the function that refills an empty buffer and returns a word."""
    code = _Code(module, "refilled_word", _WORD)
    refill = _write_refill(module)
    for _ in range(_ATTEMPTS):
        with code.build.if_then(code.is_empty()):
            code.build.call(refill, [code.buffer])
    with code.build.if_then(code.build.not_(code.is_empty())):
        code.build.ret(code.take())
    asking, given = (code.function.append_basic_block() for _ in range(2))
    code.build.branch(asking)
    code.build.position_at_end(asking)
    first = code.build.ptrtoint(code.field(_FIRST), _WORD)
    status = code.call("getentropy", first, _WORD_BYTES)
    code.build.cbranch(code.equal(status, _ENTROPY_GIVEN), given, asking)
    code.build.position_at_end(given)
    word = code.load(_FIRST)
    code.store(0, _FIRST)
    code.build.ret(word)
    return code.function


def _double(build: _Untyped, word: _Untyped) -> _Untyped:
    whole = build.lshr(word, _WORD(8 * _WORD_BYTES - _FLOAT_BITS))
    return build.fmul(build.sitofp(whole, _DOUBLE), _DOUBLE(2.0**-_FLOAT_BITS))


# What NumPy calls for a number: the type of its result, and how a word becomes one.
_DRAWS: Final[dict[str, tuple[_Untyped, Callable[[_Untyped, _Untyped], _Untyped]]]] = {
    "next_uint64": (_WORD, lambda _, word: word),
    "next_uint32": (_INT, lambda build, word: build.trunc(build.lshr(word, _WORD(32)), _INT)),
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
        with code.build.if_then(code.is_empty(), likely=False):
            code.build.ret(number(code.build, code.build.call(refilled_word, [code.buffer])))
        code.build.ret(number(code.build, code.take()))
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
        self._code = _machine_code()
        interface = _Interface.from_address(_interface_address(self.capsule, b"BitGenerator"))
        interface.state = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
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
