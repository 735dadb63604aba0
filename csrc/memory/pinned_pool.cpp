#include "memory/pinned_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "support/interrupt.h"

namespace staging {

namespace detail {

struct PinnedRegion {
  PinnedPool* pool;
  int node;
  PinnedPool::Tier tier;
  PinnedBuffer buffer;
};

}  // namespace detail

namespace {

using detail::PinnedRun;
using detail::Shelf;

constexpr std::size_t kHugePageNbytes = std::size_t{2} << 20;
// Looked at by every allocation: two, so that what is over drains faster than it comes.
constexpr std::size_t kGlances = 2;
// Beyond this a request is a mistake, and rounding it might wrap.
constexpr std::size_t kMaxRequestNbytes = std::numeric_limits<std::size_t>::max() / 4;

std::size_t round_up(std::size_t nbytes, std::size_t granule) {
  return (nbytes + granule - 1) / granule * granule;
}

// A block that a captured copy uses.
struct GraphUse {
  PinnedPool* pool;
  PinnedRun* run;
};

}  // namespace

// -- blocks --------------------------------------------------------------------------------

void PinnedBlock::add_gate(Event event) {
  PinnedPool& pool = *run_->region->pool;
  const std::lock_guard<std::mutex> lock(pool.mutex_);
  run_->gates.push_back(std::move(event));
}

void PinnedBlock::release() noexcept {
  if (run_ == nullptr) return;
  PinnedRun* run = std::exchange(run_, nullptr);
  run->region->pool->release(run, nullptr);
}

void PinnedBlock::release(std::vector<Event> gates) noexcept {
  if (run_ == nullptr) return;
  PinnedRun* run = std::exchange(run_, nullptr);
  run->region->pool->release(run, &gates);
}

void PinnedPool::release(Run* run, std::vector<Event>* gates) noexcept {
  // The child has a copy of the bookkeeping, but the memory is the parent's.
  if (Runtime::forked()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (gates != nullptr) {
    try {
      run->gates.insert(run->gates.end(), gates->begin(), gates->end());
    } catch (...) {
      run->lost = true;  // no memory to remember what to wait for
    }
  }
  stats_.in_use_nbytes -= run->nbytes;
  --stats_.count;
  run->state = Run::State::kInFlight;
  stats_.in_flight_nbytes += run->nbytes;
  in_flight_.splice(in_flight_.end(), run->flight_place);
  settle(run);
}

// -- the pool ------------------------------------------------------------------------------

// The pools of get(). A thread that forks holds their mutexes meanwhile, so that the child
// does not find one locked by a thread that it does not have.
struct PinnedPoolRegistry {
  std::mutex mutex;
  std::map<Runtime*, PinnedPool*> pools;  // guarded by mutex, as are the options
  PinnedPoolOptions options;              // of those to come

  static PinnedPoolRegistry& instance() {
    static auto* const registry = [] {
      pthread_atfork(&lock_all, &unlock_all, &unlock_all);
      return new PinnedPoolRegistry();  // never destroyed: blocks are released at exit too
    }();
    return *registry;
  }
  static void lock_all() {
    instance().mutex.lock();
    for (auto& [runtime, pool] : instance().pools) pool->mutex_.lock();
  }
  static void unlock_all() {
    for (auto& [runtime, pool] : instance().pools) pool->mutex_.unlock();
    instance().mutex.unlock();
  }
};

PinnedPool& PinnedPool::get(Runtime& runtime) {
  PinnedPoolRegistry& registry = PinnedPoolRegistry::instance();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  PinnedPool*& pool = registry.pools[&runtime];
  if (pool == nullptr) pool = new PinnedPool(runtime, registry.options);
  return *pool;
}

void PinnedPool::set_process_limit(std::size_t nbytes) {
  std::vector<PinnedPool*> pools;
  {
    PinnedPoolRegistry& registry = PinnedPoolRegistry::instance();
    const std::lock_guard<std::mutex> lock(registry.mutex);
    registry.options.limit_nbytes = nbytes;
    for (auto& [runtime, pool] : registry.pools) pools.push_back(pool);
  }
  for (PinnedPool* pool : pools) pool->set_limit(nbytes);
}

std::size_t PinnedPool::process_limit() {
  PinnedPoolRegistry& registry = PinnedPoolRegistry::instance();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  return registry.options.limit_nbytes;
}

void PinnedPool::set_process_huge_pages(bool enabled) {
  PinnedPoolRegistry& registry = PinnedPoolRegistry::instance();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.options.huge_pages = enabled;
  for (auto& [runtime, pool] : registry.pools) pool->set_huge_pages(enabled);
}

PinnedPool::PinnedPool(Runtime& runtime, const PinnedPoolOptions& options)
    : runtime_(runtime),
      nodes_(options.nodes),
      max_registration_nbytes_(options.max_registration_nbytes),
      huge_pages_(options.huge_pages) {
  stats_.limit_nbytes = options.limit_nbytes;
}

PinnedPool::~PinnedPool() {
  for (auto& [begin, run] : runs_) {
    if (run.state != Run::State::kFree) run.region->buffer.leak();
  }
}

PinnedPool::Request PinnedPool::request_for(std::size_t nbytes, int device, int node) const {
  if (nbytes > kMaxRequestNbytes) {
    throw OutOfMemory("PinnedPool::allocate", 0, "size",
                      "no machine can pin " + std::to_string(nbytes) + " bytes",
                      /*sticky=*/false);
  }
  Request request{nbytes, 0, Tier::kFine, node_key(node), device};
  if (nbytes <= kFineLimit) {
    request.nbytes = round_up(std::max<std::size_t>(nbytes, 1), kAlignment);
  } else {
    request.nbytes = page_ceil(nbytes);
    request.tier = nbytes <= kPageLimit ? Tier::kPage : Tier::kWhole;
  }
  return request;
}

int PinnedPool::node_of_device(int device) {
  if (nodes_.size() < 2 || device < 0) return kAnyNode;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = node_of_device_.find(device);
    if (found != node_of_device_.end()) return found->second;
  }
  int node = runtime_.numa_node(device);
  if (std::find(nodes_.begin(), nodes_.end(), node) == nodes_.end()) node = kAnyNode;
  const std::lock_guard<std::mutex> lock(mutex_);
  return node_of_device_.emplace(device, node).first->second;
}

void PinnedPool::check_usable() const {
  Runtime::check_not_forked();
  runtime_.check_context();  // no memory is handed out that the device may still use
}

PinnedBlock PinnedPool::allocate(std::size_t nbytes, int device) {
  check_usable();
  if (device < 0) device = runtime_.current_device();
  return allocate_on_node(nbytes, device, node_of_device(device));
}

PinnedBlock PinnedPool::allocate_on_node(std::size_t nbytes, int device, int numa_node) {
  check_usable();
  STAGING_EXPECTS(
      numa_node == kAnyNode || std::find(nodes_.begin(), nodes_.end(), numa_node) != nodes_.end(),
      "numa_node must be a node that is online, or None, got ", numa_node);
  if (device < 0) device = runtime_.current_device();
  const Request request = request_for(nbytes, device, numa_node);
  reclaim(kGlances);
  for (;;) {
    std::uint64_t seen_frees = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (Run* run = take(request)) return PinnedBlock(run);
      seen_frees = frees_;
    }
    if (reclaim(SIZE_MAX)) continue;
    std::size_t missing_nbytes = 0;
    std::optional<OutOfMemory> shortage;
    try {
      return PinnedBlock(grow(request, &missing_nbytes));
    } catch (const OutOfMemory& error) {
      shortage = error;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (Run* run = take_anywhere(request)) return PinnedBlock(run);
    }
    // At the limit it is known how much would do; where the system is short, it is not.
    const bool at_limit = missing_nbytes > 0;
    if (unpin(at_limit ? missing_nbytes : SIZE_MAX, /*all_or_nothing=*/at_limit)) continue;
    if (!wait_for_any(seen_frees)) throw *shortage;
  }
}

// -- under the mutex -----------------------------------------------------------------------

Shelf& PinnedPool::shelf_of(const Region& region) {
  return shelves_[{region.node, region.tier}];
}

PinnedPool::Run* PinnedPool::take(const Request& request) {
  Shelf& shelf = shelves_[{request.node, request.tier}];
  const auto fit = shelf.lower_bound(request.nbytes);
  if (fit == shelf.end()) return nullptr;
  if (request.tier == Tier::kWhole && (*fit)->nbytes / kMaxSplit > request.nbytes) return nullptr;
  return cut(shelf, *fit, request.nbytes, request.asked_nbytes);
}

PinnedPool::Run* PinnedPool::take_anywhere(const Request& request) {
  Shelf* best_shelf = nullptr;
  Run* best = nullptr;
  for (auto& [key, shelf] : shelves_) {
    // Fine slabs have no page boundaries, and the others nothing but.
    const bool fine = key.second == Tier::kFine;
    if (fine && request.tier != Tier::kFine) continue;
    const auto fit = shelf.lower_bound(fine ? request.nbytes : page_ceil(request.nbytes));
    if (fit == shelf.end() || (best != nullptr && (*fit)->nbytes >= best->nbytes)) continue;
    best_shelf = &shelf;
    best = *fit;
  }
  if (best == nullptr) return nullptr;
  const bool fine = best->region->tier == Tier::kFine;
  return cut(*best_shelf, best, fine ? request.nbytes : page_ceil(request.nbytes),
             request.asked_nbytes);
}

PinnedPool::Run* PinnedPool::cut(Shelf& shelf, Run* run, std::size_t nbytes,
                                 std::size_t asked_nbytes) {
  if (run->flight_place.empty()) {
    run->flight_place.push_back(run);
    run->flight = run->flight_place.begin();
  }
  Run* rest = nullptr;
  if (run->nbytes > nbytes) {
    // What allocates comes first, so that a failure changes nothing.
    Shelf place{run};
    std::byte* begin = run->begin + nbytes;
    rest = &runs_.try_emplace(begin).first->second;
    rest->region = run->region;
    rest->begin = begin;
    rest->nbytes = run->nbytes - nbytes;
    rest->shelf_place = place.extract(place.begin());
  }
  run->shelf_place = shelf.extract(run);
  run->nbytes = nbytes;
  run->asked_nbytes = asked_nbytes;
  run->state = Run::State::kInUse;
  if (rest != nullptr) {
    rest->shelf_place.value() = rest;
    shelf.insert(std::move(rest->shelf_place));
  }
  stats_.in_use_nbytes += nbytes;
  stats_.peak_in_use_nbytes = std::max(stats_.peak_in_use_nbytes, stats_.in_use_nbytes);
  ++stats_.count;
  ++stats_.allocations;
  return run;
}

PinnedPool::Run* PinnedPool::find(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  auto it = runs_.upper_bound(at);
  if (it == runs_.begin()) return nullptr;
  Run& run = std::prev(it)->second;
  return at < run.begin + run.nbytes ? &run : nullptr;
}

void PinnedPool::settle(Run* run) noexcept {
  if (run->state != Run::State::kInFlight || run->busy > 0) return;
  if (!run->lost && (run->retained > 0 || !run->gates.empty())) return;
  stats_.in_flight_nbytes -= run->nbytes;
  run->flight_place.splice(run->flight_place.begin(), in_flight_, run->flight);
  if (run->lost) {
    run->state = Run::State::kLost;
    stats_.lost_nbytes += run->nbytes;
    return;
  }
  put_back(run);
}

void PinnedPool::put_back(Run* run) noexcept {
  Shelf& shelf = shelf_of(*run->region);
  run->state = Run::State::kFree;
  run->gates = {};
  ++frees_;
  const auto joins = [run](const Run& other) {
    return other.region == run->region && other.state == Run::State::kFree;
  };
  auto it = runs_.find(run->begin);
  if (const auto next = std::next(it); next != runs_.end() && joins(next->second)) {
    shelf.erase(&next->second);
    run->nbytes += next->second.nbytes;
    runs_.erase(next);
  }
  if (it != runs_.begin() && joins(std::prev(it)->second)) {
    Run& previous = std::prev(it)->second;
    auto place = shelf.extract(&previous);
    previous.nbytes += run->nbytes;
    shelf.insert(std::move(place));
    runs_.erase(it);
    return;
  }
  shelf.insert(std::move(run->shelf_place));
}

PinnedPool::Regions PinnedPool::take_free_regions(std::size_t nbytes, bool all_or_nothing) {
  std::vector<Run*> free;
  std::size_t sum = 0;
  for (auto& [key, shelf] : shelves_) {
    for (Run* run : shelf) {
      if (run->nbytes != run->region->buffer.mapped_nbytes()) continue;
      free.push_back(run);
      sum += run->nbytes;
    }
  }
  if (all_or_nothing && sum < nbytes) return {};
  // The largest first: the fewest calls.
  std::sort(free.begin(), free.end(),
            [](const Run* a, const Run* b) { return a->nbytes > b->nbytes; });
  Regions regions;
  regions.reserve(free.size());
  std::size_t taken = 0;
  for (Run* run : free) {
    if (taken >= nbytes) break;
    taken += run->nbytes;
    Region* region = run->region;
    shelf_of(*region).erase(run);
    runs_.erase(run->begin);
    regions.push_back(std::move(regions_.at(region)));
    regions_.erase(region);
  }
  stats_.allocated_nbytes -= taken;
  stats_.unpinnings += regions.size();
  return regions;
}

PinnedPool::Run* PinnedPool::add_region(std::unique_ptr<Region>& owned, const Request& request) {
  Region* region = owned.get();
  std::byte* begin = region->buffer.bytes();
  Shelf& shelf = shelf_of(*region);
  Run* run = &runs_.try_emplace(begin).first->second;
  run->region = region;
  run->begin = begin;
  run->nbytes = region->buffer.mapped_nbytes();
  try {
    shelf.insert(run);
    regions_.emplace(region, std::move(owned));
  } catch (...) {
    shelf.erase(run);
    runs_.erase(begin);
    throw;
  }
  if (region->buffer.registered_from(begin) < run->nbytes) has_seams_.store(true);
  stats_.allocated_nbytes += run->nbytes;
  stats_.peak_nbytes = std::max(stats_.peak_nbytes, stats_.allocated_nbytes);
  ++stats_.pinnings;
  return cut(shelf, run, request.nbytes, request.asked_nbytes);
}

// -- memory from the system ----------------------------------------------------------------

PinnedPool::Run* PinnedPool::grow(const Request& request, std::size_t* missing_nbytes) {
  const std::size_t least = page_ceil(request.nbytes);
  std::size_t wanted = least;
  if (request.tier == Tier::kFine) wanted = kFineSlabNbytes;
  if (request.tier == Tier::kPage) wanted = kPageSlabNbytes;
  PinnedBufferOptions options;
  options.numa_node = request.node;
  options.max_registration_nbytes = max_registration_nbytes_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t pinned = stats_.allocated_nbytes + pinning_nbytes_;
    const std::size_t room = pinned < stats_.limit_nbytes ? stats_.limit_nbytes - pinned : 0;
    if (room < least) {
      *missing_nbytes = least - room;
      throw OutOfMemory("PinnedPool::allocate", 0, "limit",
                        std::to_string(request.asked_nbytes) +
                            " bytes do not fit: " + std::to_string(pinned) + " of at most " +
                            std::to_string(stats_.limit_nbytes) +
                            " bytes are pinned already. Drop pinned tensors, or raise the limit "
                            "(set_pinned_limit)",
                        /*sticky=*/false);
    }
    wanted = std::max(least, std::min(wanted, room / page_nbytes() * page_nbytes()));
    options.huge_pages = huge_pages_ && wanted >= kHugePageNbytes;
    pinning_nbytes_ += wanted;
  }
  std::unique_ptr<Region> region;
  std::exception_ptr failure;
  try {
    region = std::make_unique<Region>(Region{
        this, request.node, request.tier, PinnedBuffer(runtime_, request.device, wanted, options)});
  } catch (const DeviceError&) {
    failure = std::current_exception();
    count_failure();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  pinning_nbytes_ -= wanted;
  if (failure != nullptr) std::rethrow_exception(failure);
  return add_region(region, request);
}

bool PinnedPool::unpin(std::size_t nbytes, bool all_or_nothing) {
  Regions regions;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    regions = take_free_regions(nbytes, all_or_nothing);
  }
  return !regions.empty();  // unpinned here, without the mutex
}

std::size_t PinnedPool::trim() {
  Runtime::check_not_forked();
  if (!runtime_.context_lost()) reclaim(SIZE_MAX);
  Regions regions;
  std::vector<EventPool*> events;  // never destroyed before the pool
  std::size_t nbytes = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [device, pool] : events_) events.push_back(pool.get());
    nbytes = stats_.allocated_nbytes;
    regions = take_free_regions(SIZE_MAX, /*all_or_nothing=*/false);
    nbytes -= stats_.allocated_nbytes;
  }
  for (EventPool* pool : events) pool->trim();
  return nbytes;
}

void PinnedPool::set_limit(std::size_t nbytes) {
  Runtime::check_not_forked();
  std::size_t excess = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats_.limit_nbytes = nbytes;
    if (stats_.allocated_nbytes > nbytes) excess = stats_.allocated_nbytes - nbytes;
  }
  if (excess > 0) unpin(excess, /*all_or_nothing=*/false);
}

void PinnedPool::set_huge_pages(bool enabled) {
  const std::lock_guard<std::mutex> lock(mutex_);
  huge_pages_ = enabled;
}

// -- what is in flight ---------------------------------------------------------------------

// The gates of some blocks in flight, looked at without the mutex. The blocks are busy
// meanwhile, so that no other thread hands them out; what is complete is dropped at the end.
class PinnedPool::Probing {
 public:
  Probing(PinnedPool& pool, std::size_t max_runs) : pool_(pool) {
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    std::size_t count = std::min(max_runs, pool_.in_flight_.size());
    probes_.reserve(count);
    for (; count > 0; --count) {
      // To the back, so that a stalled one does not keep the others from being looked at.
      pool_.in_flight_.splice(pool_.in_flight_.end(), pool_.in_flight_, pool_.in_flight_.begin());
      Run* run = pool_.in_flight_.back();
      try {
        probes_.push_back({run, run->gates});
      } catch (...) {
        break;  // no memory: fewer are looked at
      }
      ++run->busy;
    }
  }
  Probing(const Probing&) = delete;
  Probing& operator=(const Probing&) = delete;
  ~Probing() { finish(); }

  void look() {
    std::vector<StreamRef> stalled;
    for (const Probe& probe : probes_) {
      for (const Event& gate : probe.gates) {
        // Events of one stream complete in order. (A stream whose handle was given to a new
        // one makes this late, not wrong.)
        const StreamRef stream = gate.recorded_on();
        if (std::find(stalled.begin(), stalled.end(), stream) != stalled.end()) continue;
        if (gate.query()) {
          complete_.push_back(gate.handle());
        } else {
          stalled.push_back(stream);
        }
      }
    }
  }

  // Whether one of the blocks became free.
  bool finish() noexcept {
    if (probes_.empty()) return false;
    std::sort(complete_.begin(), complete_.end());
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    const std::uint64_t frees = pool_.frees_;
    for (const Probe& probe : probes_) {
      std::erase_if(probe.run->gates, [this](const Event& gate) {
        return std::binary_search(complete_.begin(), complete_.end(), gate.handle());
      });
      --probe.run->busy;
      pool_.settle(probe.run);  // may end the run's existence
    }
    probes_.clear();
    return pool_.frees_ != frees;
  }

 private:
  struct Probe {
    Run* run;
    std::vector<Event> gates;  // these references keep the handles from being given out again
  };
  PinnedPool& pool_;
  std::vector<Probe> probes_;
  std::vector<EventHandle> complete_;
};

bool PinnedPool::reclaim(std::size_t max_runs) {
  Probing probing(*this, max_runs);
  try {
    probing.look();
  } catch (const DeviceError&) {
    count_failure();
    throw;
  }
  return probing.finish();
}

bool PinnedPool::wait_for_any(std::uint64_t seen_frees) {
  using std::chrono::microseconds;
  constexpr microseconds kLongest{1000};
  microseconds pause{20};
  for (bool first = true;; first = false) {
    reclaim(SIZE_MAX);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (frees_ != seen_frees) return true;
      // One that another thread looks at may become free when that is done.
      const bool waitable = std::any_of(in_flight_.begin(), in_flight_.end(), [](const Run* run) {
        return run->retained == 0 && (run->busy > 0 || !run->gates.empty());
      });
      if (!waitable) return false;
      if (first) ++stats_.waits;
    }
    throw_if_interrupted();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongest);
  }
}

EventPool& PinnedPool::events_of(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<EventPool>& pool = events_[device];
  if (pool == nullptr) pool = std::make_unique<EventPool>(runtime_, device);
  return *pool;
}

bool PinnedPool::record_use(const void* pointer, StreamRef stream) {
  Runtime::check_not_forked();
  Run* run = nullptr;
  std::vector<Event> oldest;  // those that may be over, so that steady use keeps few events
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    run = find(pointer);
    if (run == nullptr || run->state != Run::State::kInUse) return false;
    const auto count = static_cast<std::ptrdiff_t>(std::min(kGlances, run->gates.size()));
    oldest.assign(run->gates.begin(), run->gates.begin() + count);
    ++run->busy;
  }
  CaptureStatus status = CaptureStatus::kNone;
  try {
    const DeviceScope scope(runtime_, stream.device);
    status = runtime_.capture_status(stream.device, stream.handle);
    if (status == CaptureStatus::kActive) {
      retain_in_graph(run, stream);
    } else if (status == CaptureStatus::kNone) {
      add_use(run, stream, std::move(oldest));
    }  // else the capture is void, and so is the copy
  } catch (...) {
    count_failure();
    // What was enqueued is not known to end. Wait for it; where that fails too, or is not
    // allowed, the block is never handed out again.
    bool over = false;
    if (status != CaptureStatus::kActive) {
      try {
        runtime_.synchronize_stream(stream.device, stream.handle);
        over = true;
      } catch (...) {
      }
    }
    end_use(run, /*lost=*/!over);
    throw;
  }
  end_use(run, /*lost=*/false);
  return true;
}

void PinnedPool::add_use(Run* run, StreamRef stream, std::vector<Event> oldest) {
  std::erase_if(oldest, [](const Event& gate) { return !gate.query(); });
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(run->gates, [&](const Event& gate) {
      return std::find(oldest.begin(), oldest.end(), gate) != oldest.end();
    });
  }
  oldest.clear();  // back in their pool, for the next line
  Event event = events_of(stream.device).acquire();
  event.record(stream.handle);
  const std::lock_guard<std::mutex> lock(mutex_);
  run->gates.push_back(std::move(event));
}

void PinnedPool::end_use(Run* run, bool lost) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --run->busy;
  run->lost = run->lost || lost;
  settle(run);
}

void PinnedPool::retain_in_graph(Run* run, StreamRef stream) {
  auto use = std::make_unique<GraphUse>(GraphUse{this, run});
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++run->retained;
  }
  runtime_.retain_in_capture(stream.device, stream.handle, &drop_from_graph, use.release());
}

void PinnedPool::drop_from_graph(void* argument) noexcept {
  const std::unique_ptr<GraphUse> use(static_cast<GraphUse*>(argument));
  if (Runtime::forked()) return;
  const std::lock_guard<std::mutex> lock(use->pool->mutex_);
  --use->run->retained;
  use->pool->settle(use->run);
}

// -- what it tells -------------------------------------------------------------------------

bool PinnedPool::contains(const void* pointer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Run* run = const_cast<PinnedPool*>(this)->find(pointer);
  return run != nullptr && run->state == Run::State::kInUse;
}

std::size_t PinnedPool::registered_from(const void* pointer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Run* run = const_cast<PinnedPool*>(this)->find(pointer);
  return run == nullptr ? SIZE_MAX : run->region->buffer.registered_from(pointer);
}

PinnedStats PinnedPool::stats() {
  if (!Runtime::forked() && !runtime_.context_lost()) {
    try {
      reclaim(SIZE_MAX);
    } catch (const DeviceError&) {  // counted; what is in flight stays so
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  PinnedStats stats = stats_;
  stats.cached_nbytes =
      stats.allocated_nbytes - stats.in_use_nbytes - stats.in_flight_nbytes - stats.lost_nbytes;
  stats.in_flight_count = in_flight_.size();
  stats.regions = regions_.size();
  return stats;
}

void PinnedPool::reset_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.peak_nbytes = stats_.allocated_nbytes;
  stats_.peak_in_use_nbytes = stats_.in_use_nbytes;
}

void PinnedPool::count_failure() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.failures;
}

}  // namespace staging
