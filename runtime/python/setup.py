# SPDX-License-Identifier: MIT
"""The package is for one kind of machine if it brings the library (make_wheel.sh), else for all."""
import os

from setuptools import Distribution, setup


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        return os.path.exists("moe_offload/libmoe_offload.so.0")


setup(distclass=Package)
