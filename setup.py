"""Entry point for tools that still call it; every fact is in setup.cfg."""

from setuptools import setup

setup()
