#include "sim/kernels.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <unordered_map>

#include "kernels/registry.h"
#include "sim/arena.h"
#include "sim/fill_kernel.h"
#include "sim/page_access.h"
#include "sim/reports.h"

namespace staging::sim {

namespace {

// Constant-initialised, so that libraries may register before this one is initialised.
struct State {
  std::mutex mutex;
  std::vector<std::pair<const void*, const char*>> registered;  // LOCK: mutex; not yet in entries
  std::unordered_map<const void*, std::unique_ptr<KernelEntry>> entries;  // LOCK: mutex
  std::vector<std::unique_ptr<KernelEntry>> replaced;                     // LOCK: mutex
};

State& state() {
  static State& state = *new State;
  return state;
}

// "staging::kernels::copy_kernel(Params)" -> "copy_kernel"; template arguments go, too.
std::string bare_name(const std::string& demangled) {
  std::string name = demangled.substr(0, demangled.find('('));
  name = name.substr(0, name.find('<'));
  if (const auto colon = name.rfind(':'); colon != std::string::npos) name = name.substr(colon + 1);
  if (const auto space = name.rfind(' '); space != std::string::npos) name = name.substr(space + 1);
  return name;
}

// A kernel of this package.
class OwnKernel final : public KernelModel {
 public:
  explicit OwnKernel(const Kernel& kernel)
      : kernel_(kernel),
        parameters_(kernel.param_nbytes, kernel.param_nbytes + kernel.param_count) {}

  const std::vector<std::size_t>& parameter_nbytes() const override { return parameters_; }
  void run(dim3 grid, dim3 block, std::size_t shared_nbytes, void** args) const override {
    kernel_.host({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_nbytes, args);
  }

 private:
  const Kernel& kernel_;
  std::vector<std::size_t> parameters_;
};

std::unique_ptr<KernelModel> make_model(const std::string& demangled) {
  constexpr const char* kOwn = "staging::kernels::";
  if (demangled.find(kOwn) != std::string::npos) {
    const Kernel* const own = kernels::find_kernel(bare_name(demangled));
    return own == nullptr ? nullptr : std::make_unique<OwnKernel>(*own);
  }
  return make_fill_kernel(demangled);
}

std::string demangle(const char* mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : mangled;
  std::free(text);
  return result;
}

}  // namespace

Kernels& Kernels::get() {
  static Kernels kernels;
  return kernels;
}

void Kernels::add(const void* stub, const char* mangled) {
  // Tens of thousands while PyTorch loads: noted now, looked at when one is launched.
  const std::lock_guard lock(state().mutex);
  state().registered.emplace_back(stub, mangled);
}

const KernelEntry* Kernels::find(const void* stub) {
  const std::lock_guard lock(state().mutex);
  for (const auto& [registered, mangled] : state().registered) {
    auto& entry = state().entries[registered];
    // Another library may be where an unloaded one was; work in flight keeps its entry.
    if (entry != nullptr) state().replaced.push_back(std::move(entry));
    entry = std::make_unique<KernelEntry>();
    entry->stub = registered;
    entry->mangled = mangled;
  }
  state().registered.clear();
  const auto it = state().entries.find(stub);
  if (it == state().entries.end()) return nullptr;
  KernelEntry& entry = *it->second;
  if (entry.name.empty()) {
    entry.name = demangle(entry.mangled);
    entry.model = make_model(entry.name);
  }
  return &entry;
}

KernelWork::KernelWork(const KernelEntry& entry, dim3 grid, dim3 block, std::size_t shared_nbytes,
                       void** args)
    : Work(Kind::kDevice, /*brief=*/false),
      entry_(entry),
      grid_(grid),
      block_(block),
      shared_nbytes_(shared_nbytes) {
  const auto& sizes = entry.model->parameter_nbytes();
  std::size_t total = 0;
  for (const std::size_t nbytes : sizes) {
    offsets_.push_back(total);
    total += (nbytes + 15) / 16 * 16;
  }
  bytes_.resize(total / sizeof(std::uint64_t) + 1);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::memcpy(reinterpret_cast<std::byte*>(bytes_.data()) + offsets_[i], args[i], sizes[i]);
  }
}

cudaError_t KernelWork::run() const {
  // Kernels get a copy: a body may change its parameters, and a graph runs them again.
  std::vector<std::uint64_t> bytes = bytes_;
  std::vector<void*> args;
  args.reserve(offsets_.size());
  for (const std::size_t offset : offsets_) {
    args.push_back(reinterpret_cast<std::byte*>(bytes.data()) + offset);
  }
  try {
    const ProtectionLifted lifted;
    const DeviceAccess access;
    entry_.model->run(grid_, block_, shared_nbytes_, args.data());
  } catch (const std::exception& error) {
    Reports::get().add("kernel-failed", entry_.name + ": " + error.what());
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

bool KernelWork::uses(std::uintptr_t begin, std::uintptr_t end) const {
  for (const std::uint64_t word : bytes_) {
    if (word >= begin && word < end) return true;
  }
  return false;
}

}  // namespace staging::sim
