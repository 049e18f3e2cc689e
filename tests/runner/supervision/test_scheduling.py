"""The worker's threads are scheduled patiently, those that they start too, and its children as ever."""

from __future__ import annotations

import os
import subprocess
import sys

from engine.machine.root import SOURCE_ROOT

_PROGRAM = """
import os, subprocess, sys, threading
from runner.supervision.child import with_parent
from runner.supervision.scheduling import share_patiently

def policies():
    return [os.sched_getscheduler(int(each)) for each in os.listdir("/proc/self/task")]

wait = threading.Event()
threading.Thread(target=wait.wait).start()
before = policies()
share_patiently()
threading.Thread(target=wait.wait).start()
after = policies()
wait.set()
ask = "import os; print(os.sched_getscheduler(0))"
child = subprocess.check_output([*with_parent(os.getpid()), sys.executable, "-c", ask], text=True)
print([before, after, int(child)])
"""


def test_all_threads_of_the_process_and_no_child() -> None:
    told = subprocess.check_output([sys.executable, "-c", _PROGRAM], cwd=SOURCE_ROOT, text=True)
    ever, patient = os.SCHED_OTHER, os.SCHED_BATCH
    assert told.strip() == str([[ever, ever], [patient, patient, patient], ever])
