#include "nvtx.h"

#include <string>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define LZ_HAS_NVTX 1
#else
#define LZ_HAS_NVTX 0
#endif

namespace lz::python {

#if LZ_HAS_NVTX
namespace {

// The header loads the tool that NVTX_INJECTION64_PATH names; without a tool a range is one load and one branch.
class NvtxObserver : public Observer {
 public:
  NvtxObserver() : domain_(nvtxDomainCreateA("layerzero")) {}
  ~NvtxObserver() override { nvtxDomainDestroy(domain_); }

  void Began(const KernelRun& run) override {
    const std::string name = run.kernel.operation + " [" + run.kernel.id + "]";
    nvtxEventAttributes_t range = {};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name.c_str();
    nvtxDomainRangePushEx(domain_, &range);
  }
  void Ended(const KernelRun&, const Status&, double) override { nvtxDomainRangePop(domain_); }

 private:
  nvtxDomainHandle_t domain_;
};

}  // namespace

std::shared_ptr<Observer> MakeNvtxObserver() { return std::make_shared<NvtxObserver>(); }
#else
std::shared_ptr<Observer> MakeNvtxObserver() { return nullptr; }
#endif

}  // namespace lz::python
