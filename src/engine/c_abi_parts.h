// What the files of the C ABI share: the calling thread's last error, and the tables that lz_api points to.
#pragma once

#include "core/status.h"
#include "layerzero/kv_abi.h"

namespace lz {

// Keeps an error for lz_api.last_error; returns the status code.
int32_t KeepError(const Status& status);
const lz_kv_api* KvApi();

}  // namespace lz
