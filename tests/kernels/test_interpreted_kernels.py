"""The Triton kernels on the CPU, in Triton's interpreter.

TRITON_INTERPRET must be set before Triton is imported and makes every process that inherits it
crawl. So it is set for one child process, which runs the tests of the other files here for the
Triton implementations; its results are this file's.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from kernels import OPS

HERE = Path(__file__).parent
FILES = (
    "test_attention_windows.py",
    "test_compiled_attention.py",
    "test_edge_inputs.py",
    "test_huge.py",
    "test_losses_in_chunks.py",
    "test_operators_are_right.py",
    "test_hopper_rows.py",
    "test_planted_bugs.py",
    "test_routing.py",
    "test_states.py",
)
WITH_TRITON = sorted(name for name, op in OPS.items() if "triton" in op.implementations)

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is the child"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="here the kernels run on the GPU itself"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def child(tmp_path_factory) -> dict[str, list[ET.Element]]:
    """Return the child's test cases by operator."""
    report = tmp_path_factory.mktemp("interpreter") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(  # in one process: the cores have other tests to run
        [
            *command,
            "-n",
            "0",
            f"--junit-xml={report}",
            *(str(path) for file in FILES for path in HERE.rglob(file)),
        ],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode in (0, 1), done.stdout[-3000:]
    by_operator: dict[str, list[ET.Element]] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        parameters = case.get("name", "").partition("[")[2].rstrip("]")
        operator = next((n for n in WITH_TRITON if parameters.split("-")[0] == n), "")
        by_operator.setdefault(operator, []).append(case)
    return by_operator


@pytest.mark.parametrize("name", WITH_TRITON)
def test_the_triton_kernels_are_right_in_the_interpreter(child, name):
    ran = [case for case in child.get(name, []) if case.find("skipped") is None]
    assert len(ran) >= 5, f"only {len(ran)} tests of {name} ran"
    failed = [
        f"{case.get('name')}: {(problem.get('message') or '')[:600]}"
        for case in ran
        for problem in (*case.iter("failure"), *case.iter("error"))
    ]
    assert not failed, "\n".join(failed[:10])


def test_nothing_else_failed_in_the_child(child):
    failed = [
        case.get("name")
        for case in child.get("", [])
        if case.find("failure") is not None or case.find("error") is not None
    ]
    assert not failed
