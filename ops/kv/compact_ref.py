"""Torch reference of kv.compact: any device; writes into the caches."""


def reference(key_cache, value_cache, moves):
    source, target = moves[moves[:, 0] >= 0].long().unbind(1)
    blocks = key_cache.shape[0]
    named = [*source.tolist(), *target.tolist()]
    if named and not 0 <= min(named) <= max(named) < blocks:
        raise ValueError(f"moves: wanted blocks below {blocks}, got {moves.tolist()}")
    if len(set(target.tolist())) < len(target) or set(source.tolist()) & set(target.tolist()):
        raise ValueError(f"moves: wanted targets that no other pair reads or writes, got {moves.tolist()}")
    for cache in (key_cache, value_cache):
        cache[target] = cache[source]
