"""Cheats in C that change the interpreter, NumPy or the C library: hooks that `sys` does not show, clocks, loops."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.cheats.mischief import Arrays, misbehaves
from tests.cheats.native import compiled

CODE = """
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long begun;
long half(int clock, struct timespec *t) {
  const long result = syscall(SYS_clock_gettime, clock, t);
  if (clock == CLOCK_MONOTONIC) {
    long present = t->tv_sec * 1000000000L + t->tv_nsec;
    if (!begun) begun = present;
    present = begun + (present - begun) / 2;
    t->tv_sec = present / 1000000000L;
    t->tv_nsec = present % 1000000000L;
  }
  return result;
}
static void put(void *to, const void *from, long bytes, int flags) {
  char *page = (char *)((uintptr_t)to & -4096UL);
  mprotect(page, 8192, PROT_READ | PROT_WRITE | flags);
  memcpy(to, from, bytes);
  if (flags) mprotect(page, 8192, PROT_READ | flags);
}
void write_over(void *target) {
  unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
  void *function = half;
  memcpy(jump + 2, &function, 8);
  put(target, jump, 12, PROT_EXEC);
}
void rewrite(void *target) {
  unsigned char same[12];
  memcpy(same, target, 12);
  put(target, same, 12, PROT_EXEC);
}
static int redirect_one(struct dl_phdr_info *info, size_t size, void *unused) {
  const ElfW(Dyn) *entry = 0;
  const ElfW(Rela) *tables[2] = {0};
  const ElfW(Sym) *symbols = 0;
  const char *names = 0;
  size_t sizes[2] = {0};
  if (strstr(info->dlpi_name, "vdso") || (info->dlpi_name[0] && !strstr(info->dlpi_name, "libpython"))) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) entry = (void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
  for (; entry && entry->d_tag; entry++) {
    if (entry->d_tag == DT_JMPREL) tables[0] = (void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_PLTRELSZ) sizes[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
    if (entry->d_tag == DT_RELA) tables[1] = (void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_RELASZ) sizes[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
    if (entry->d_tag == DT_SYMTAB) symbols = (void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) names = (void *)entry->d_un.d_ptr;
  }
  void *function = half;
  for (int table = 0; table < 2; table++)
    for (size_t i = 0; i < sizes[table]; i++)
      if (!strcmp(names + symbols[ELF64_R_SYM(tables[table][i].r_info)].st_name, "clock_gettime"))
        put((void *)(info->dlpi_addr + tables[table][i].r_offset), &function, 8, 0);
  return 0;
}
void redirect(void) { dl_iterate_phdr(redirect_one, 0); }
static void wait_a_little(void) { for (volatile int i = 0; i < 3000; i++) ; }
int profile(void *a, void *b, int c, void *d) { wait_a_little(); return 0; }
void *_PyEval_EvalFrameDefault(void *, void *, int);
void *evaluate(void *a, void *b, int c) { wait_a_little(); return _PyEval_EvalFrameDefault(a, b, c); }
typedef void (*loop)(char **, const long *, const long *, void *);
static loop old;
static void slow(char **a, const long *b, const long *c, void *d) { wait_a_little(); old(a, b, c, d); }
void replace(loop *place) { old = *place; *place = slow; }
"""
"""A clock of half the speed, in place of the C library's by its code or by the table of its callers; and slow hooks."""
LOOPS_AT = 32
"""Place of the table of loops in a function of NumPy."""
_KEPT: list[Any] = []


def _once(act: Any) -> Any:
    """An act with the compiled library, in the first call of a process."""

    def first(_: Arrays, __: Arrays) -> None:
        if act not in _KEPT:
            library = compiled(CODE)
            _KEPT.extend((act, library))
            act(library)

    first.__name__ = act.__name__
    return first


def write_over_the_clock(library: Any) -> None:
    library.write_over(ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p))


def put_code_back(library: Any) -> None:
    """The bytes are the same again."""
    library.rewrite(ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p))


def redirect_the_clock(library: Any) -> None:
    library.redirect()


def profile_in_c(library: Any) -> None:
    """`sys.getprofile` returns None."""
    set_profile = ctypes.pythonapi.PyEval_SetProfile
    set_profile.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    set_profile(ctypes.cast(library.profile, ctypes.c_void_p), None)


def evaluate_in_c(library: Any) -> None:
    """All code of Python runs by another function."""
    interpreter = ctypes.pythonapi.PyInterpreterState_Get
    interpreter.restype = ctypes.c_void_p
    set_function = ctypes.pythonapi._PyInterpreterState_SetEvalFrameFunc
    set_function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    set_function(interpreter(), ctypes.cast(library.evaluate, ctypes.c_void_p))


def replace_loop_of_numpy(library: Any) -> None:
    """Squares of float32 take longer."""
    table = ctypes.c_void_p.from_address(id(np.square) + LOOPS_AT).value or 0
    library.replace(ctypes.c_void_p(table + ctypes.sizeof(ctypes.c_void_p) * np.square.types.index("f->f")))


for _act in (write_over_the_clock, put_code_back, redirect_the_clock, replace_loop_of_numpy):
    misbehaves("touching timer or checker", _act.__name__, _once(_act))
for _act in (profile_in_c, evaluate_in_c):
    misbehaves("state left behind", _act.__name__, _once(_act))
