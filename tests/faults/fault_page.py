# SPDX-License-Identifier: MIT
"""fault_page.h for drivers in Python: the page through which the preloaded library is told which calls
go wrong. Programs that are started after FaultPage.make() are under its command."""
import ctypes
import mmap
import os

CLASSES = ("open", "stat", "read", "map", "advise", "alloc", "thread", "ring", "enter", "completion",
           "wait", "write")
KINDS = ("fail", "short", "late", "hang", "lie", "wake")


class FaultPage(ctypes.Structure):
    """fault_page, as far as drivers in Python use it."""
    _fields_ = [("profile", ctypes.c_uint32), ("armed", ctypes.c_uint32),
                ("let_go", ctypes.c_uint32), ("seed", ctypes.c_uint64),
                ("late_us", ctypes.c_uint32), ("hang_ms", ctypes.c_uint32),
                ("lie_inode", ctypes.c_uint64), ("lie_from", ctypes.c_uint64),
                ("rates", ctypes.c_uint32 * len(KINDS) * len(CLASSES)), ("nth", ctypes.c_int64),
                ("nth_class", ctypes.c_uint32), ("nth_kind", ctypes.c_uint32),
                ("loaded", ctypes.c_uint32), ("n_calls", ctypes.c_uint64 * len(CLASSES)),
                ("n_faults", ctypes.c_uint64 * len(KINDS) * len(CLASSES))]

    @classmethod
    def make(cls, folder, preload):
        path = os.path.join(folder, "page")
        with open(path, "wb") as file:
            file.truncate(1 << 16)
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 1 << 16)
        os.environ.update(FAULT_PAGE=path, LD_PRELOAD=preload)
        page = cls.from_buffer(memory)
        page.nth = -1
        return page

    def arm(self, **rates):
        """Of a million calls of a class so many fail."""
        clear = (ctypes.c_uint32 * len(KINDS) * len(CLASSES))()
        ctypes.memmove(self.rates, clear, ctypes.sizeof(clear))
        for name, rate in rates.items():
            self.rates[CLASSES.index(name)][KINDS.index("fail")] = rate
        self.armed = 1

    def disarm(self):
        self.armed = 0
        self.nth = -1

    def arm_nth(self, name, n):
        """The nth call from now on (from 0) of this class fails; n < 0: calls are only counted."""
        ctypes.memset(self.n_calls, 0, ctypes.sizeof(self.n_calls))
        self.nth_class = CLASSES.index(name)
        self.nth_kind = KINDS.index("fail")
        self.nth = n
        self.armed = 1
