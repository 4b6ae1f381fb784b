"""What this machine can record, and what is missing: the checks of ``ppprof doctor``."""

from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check
from ppprof.capture.doctor.device_checks import measure_peaks, peak_checks
from ppprof.capture.doctor.examination import examine

__all__ = ["OK", "PROBLEM", "WARNING", "Check", "examine", "measure_peaks", "peak_checks"]
