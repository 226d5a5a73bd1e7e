"""Tests of single parts against the real system, or against a fake and the real one."""
