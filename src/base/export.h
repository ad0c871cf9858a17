// Visibility of what our own libraries, the bindings, use of liblayerzero.so. All other callers have the C ABI.
#pragma once

#define LZ_OWN __attribute__((visibility("default")))
