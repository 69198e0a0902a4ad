"""Benchmarks, run by asv. Each module measures one thing; common.py holds what they share."""
