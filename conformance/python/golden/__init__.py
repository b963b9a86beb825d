# SPDX-License-Identifier: Apache-2.0
"""Exact golden values, written from the specification and independent of ref/."""
