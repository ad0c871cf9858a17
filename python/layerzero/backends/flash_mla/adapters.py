"""FlashMLA by its own package."""

from flash_mla import flash_mla_with_kvcache, get_mla_metadata

from layerzero.backends.flash_mla.dense import mla_of, probe_of

mla_decode_paged = mla_of(get_mla_metadata, flash_mla_with_kvcache)
probe = probe_of(mla_decode_paged)
