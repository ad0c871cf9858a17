"""Torch reference of kv.append_paged: any device; writes into the caches."""

from ..common import kv_rows as _rows


def reference(key_cache, value_cache, key, value, slots, *, k_scale=None, v_scale=None):
    _rows.append(key_cache, value_cache, key, value, slots, k_scale, v_scale)
