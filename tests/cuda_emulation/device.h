// The emulated device, for tests.
#pragma once

namespace lz::emulation {

// Whether the device has clusters, as it does at first.
void UseClusters(bool use);

}  // namespace lz::emulation
