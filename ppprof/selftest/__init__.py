"""The self-test: trainings on the device of this machine, and what must hold of their recordings.

::

    trainings.py   child processes: short trainings with ppprof attached
    trained.py     start one, and return its run, its output and its own measurements
    bodies.py      a body for each training: claims about the run, with the measured values
    report.py      run all bodies for ``ppprof doctor --selftest``, and keep their files

``make test-gpu`` and the tests on the test device run the same bodies.
"""

FLOATS = 1 << 14
"""Elements of a transfer and of a collective of the trainings: 64 KiB."""
LAST_STEP = "the next step does not end"
"""What a rank prints ahead of the step in which it is stuck."""
