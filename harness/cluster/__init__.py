"""Runs spread over the GPUs of a host or over hosts, by dask.distributed (extra `cluster`)."""
