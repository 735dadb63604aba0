// Pinned memory in blocks, reused only after every copy that used them is done.
//
// Purpose: pinning is slow (the kernel locks each page, the driver maps it), so what was
//   pinned is kept and handed out again; and what a device may still be reading or writing
//   is not handed out, whatever its last owner did with it.
// Owner: the pool owns regions (PinnedBuffer), a PinnedBlock owns a part of one.
//   `PinnedPool::get` is the process's pool for a runtime and is never destroyed; blocks
//   must be gone before a pool that is.
// Thread-safety: all of it, from any thread. One mutex; under it no call of the runtime is
//   made, nothing is waited for and the GIL is not taken.
//
// Where blocks come from. A region is cut into runs, in address order, without gaps; a run is
// free, in use or in flight, and neighbours that are free are one. There are three tiers:
//   fine   up to kFineLimit bytes, to 64 bytes, from slabs of kFineSlabNbytes
//   page   up to kPageLimit bytes, to the page, from slabs of kPageSlabNbytes
//   whole  beyond, to the page, each a region of its own when it is first made
// so a large block costs a page more than was asked for at most, not the next power of two.
// The smallest run that fits is taken, and split; a block is not cut out of a cached run
// that is more than kMaxSplit times larger, unless no more memory can be pinned.
// Regions are keyed by NUMA node; a block comes from the node of its device.
//
// When a block is reused. What uses it after the host lets go is known in three ways:
//   gates     events that the owner adds (add_gate), one a copy
//   uses      record_use(pointer, stream) records an event behind what `stream` holds now.
//             Any address inside the block will do: what is tracked is the memory, not the
//             tensor. It is recorded when the copy is enqueued, not when the block is
//             released: by then the stream may be gone, or capture.
//   capture   a use by a stream under capture keeps the block until the graph and all its
//             executables are gone (Runtime::retain_in_capture).
// A released block is in flight until all of these are over. Releasing makes no runtime
// call, so it may happen anywhere: in a destructor at exit, in the garbage collector, while
// another thread captures. Gates are looked at by the calls that want memory.
//
// Invariants:
//   * A run in flight is neither handed out nor unpinned before its gates are complete.
//   * in use + in flight + cached + lost == allocated, in bytes.
//   * A run whose use could not be recorded nor waited for is lost: never handed out again.
//   * After a fork the child neither takes nor gives: releasing does nothing there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "memory/pinned_buffer.h"
#include "stream/event_pool.h"

namespace staging {

class PinnedPool;

struct PinnedPoolOptions {
  std::size_t limit_nbytes = SIZE_MAX;  // of what is pinned
  bool huge_pages = false;              // for regions of 2 MiB and more
  std::size_t max_registration_nbytes = PinnedBufferOptions{}.max_registration_nbytes;
  std::vector<int> nodes = online_nodes();  // with only one, nodes are not told apart
};

struct PinnedStats {
  std::size_t allocated_nbytes = 0;  // pinned, the sum of the four below
  std::size_t in_use_nbytes = 0;     // owned by blocks
  std::size_t in_flight_nbytes = 0;  // released, but a copy or a graph may still use it
  std::size_t cached_nbytes = 0;     // free to be handed out or trimmed
  std::size_t lost_nbytes = 0;       // never to be reused, see the invariants
  std::size_t peak_nbytes = 0;       // high-water mark of allocated_nbytes
  std::size_t peak_in_use_nbytes = 0;
  std::size_t limit_nbytes = SIZE_MAX;
  std::size_t count = 0;  // blocks in use
  std::size_t in_flight_count = 0;
  std::size_t regions = 0;
  std::uint64_t allocations = 0;  // blocks handed out, ever
  std::uint64_t pinnings = 0;     // regions pinned, ever
  std::uint64_t unpinnings = 0;
  std::uint64_t waits = 0;     // times that an allocation waited for a copy to end
  std::uint64_t failures = 0;  // calls of the runtime that failed here
};

namespace detail {

struct PinnedRegion;
struct PinnedRun;

// Free runs by size, then address. Also compares with a size.
struct RunBySize {
  using is_transparent = void;
  inline bool operator()(const PinnedRun* a, const PinnedRun* b) const noexcept;
  inline bool operator()(const PinnedRun* run, std::size_t nbytes) const noexcept;
};
using Shelf = std::set<PinnedRun*, RunBySize>;

// A part of a region. Guarded by the pool's mutex, but for what does not change while it is
// in use: region, begin, nbytes, asked_nbytes.
struct PinnedRun {
  enum class State : std::uint8_t { kFree, kInUse, kInFlight, kLost };

  PinnedRegion* region = nullptr;
  std::byte* begin = nullptr;
  std::size_t nbytes = 0;
  std::size_t asked_nbytes = 0;
  State state = State::kFree;
  bool lost = false;           // goes to kLost when it is released
  std::uint32_t busy = 0;      // threads that use it without the mutex
  std::uint32_t retained = 0;  // captured uses whose graphs still exist
  std::vector<Event> gates;
  // Its places on a shelf and among those in flight, kept while it is not there, so that
  // releasing never allocates.
  Shelf::node_type shelf_place;
  std::list<PinnedRun*> flight_place;
  std::list<PinnedRun*>::iterator flight;  // stays valid wherever the node is
};

bool RunBySize::operator()(const PinnedRun* a, const PinnedRun* b) const noexcept {
  return a->nbytes != b->nbytes ? a->nbytes < b->nbytes : a->begin < b->begin;
}
bool RunBySize::operator()(const PinnedRun* run, std::size_t nbytes) const noexcept {
  return run->nbytes < nbytes;
}

}  // namespace detail

// Owns a block. Dropping it releases it.
class PinnedBlock {
 public:
  PinnedBlock() noexcept = default;
  PinnedBlock(const PinnedBlock&) = delete;  // one owner
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  PinnedBlock(PinnedBlock&& other) noexcept : run_(std::exchange(other.run_, nullptr)) {}
  PinnedBlock& operator=(PinnedBlock&& other) noexcept {
    if (this != &other) {
      release();
      run_ = std::exchange(other.run_, nullptr);
    }
    return *this;
  }
  ~PinnedBlock() { release(); }

  explicit operator bool() const noexcept { return run_ != nullptr; }
  void* data() const noexcept { return run_ != nullptr ? run_->begin : nullptr; }
  std::byte* bytes() const noexcept { return run_ != nullptr ? run_->begin : nullptr; }
  std::size_t nbytes() const noexcept { return run_ != nullptr ? run_->asked_nbytes : 0; }
  // What it costs.
  std::size_t capacity_nbytes() const noexcept { return run_ != nullptr ? run_->nbytes : 0; }

  // The block is not reused before `event`, recorded already, is complete. No runtime call.
  void add_gate(Event event);
  // Lets go of it. Waits for nothing and makes no runtime call.
  void release() noexcept;
  // The same, with the events of the copies that still use it.
  void release(std::vector<Event> gates) noexcept;

  // The ownership as an address, for deleters that take one. Null for an empty block.
  void* detach() noexcept { return std::exchange(run_, nullptr); }
  static PinnedBlock attach(void* detached) noexcept {
    return PinnedBlock(static_cast<detail::PinnedRun*>(detached));
  }

 private:
  friend class PinnedPool;
  explicit PinnedBlock(detail::PinnedRun* run) noexcept : run_(run) {}

  detail::PinnedRun* run_ = nullptr;
};

class PinnedPool {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kFineLimit = 2048;
  static constexpr std::size_t kFineSlabNbytes = std::size_t{256} << 10;
  static constexpr std::size_t kPageLimit = std::size_t{256} << 10;
  static constexpr std::size_t kPageSlabNbytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxSplit = 8;

  // The process's pool for `runtime`; made when it is first asked for.
  static PinnedPool& get(Runtime& runtime);
  // The same for all pools of get(), those to come included. Chooses no runtime.
  static void set_process_limit(std::size_t nbytes);
  static std::size_t process_limit();
  static void set_process_huge_pages(bool enabled);

  explicit PinnedPool(Runtime& runtime, const PinnedPoolOptions& options = {});
  PinnedPool(const PinnedPool&) = delete;  // blocks point into it
  PinnedPool& operator=(const PinnedPool&) = delete;
  // Unpins what is cached; a region with a block in use or in flight is leaked.
  ~PinnedPool();

  // A block of `nbytes` near `device` (its context registers new memory; the block is pinned
  // for all devices); -1 stands for the current one. Zero bytes give a block of the smallest
  // size, so that its address is pinned and its own. The contents are not defined.
  //
  // Where the limit is reached or the system has no more, what is cached is unpinned, then
  // any free run is taken, and at last the blocks in flight are waited for: call it without
  // the GIL. Throws OutOfMemory when all of that is not enough, DeviceError (of an earlier
  // call, too, once the context is lost), Interrupted, StateError in a forked child.
  PinnedBlock allocate(std::size_t nbytes, int device = -1);
  // The same, from a NUMA node.
  PinnedBlock allocate_on_node(std::size_t nbytes, int device, int numa_node);

  // The block that holds `pointer`, if one in use does, is not reused before what `stream`
  // holds now has run; false if none does. Does not wait. When the event cannot be recorded
  // the stream is synchronized instead, so that nothing is left unprotected, and the error
  // is thrown.
  bool record_use(const void* pointer, StreamRef stream);

  // Whether a block in use holds `pointer`.
  bool contains(const void* pointer) const;
  // Bytes from `pointer`, in a block, up to where a copy must be split: the end of the
  // registration. SIZE_MAX for memory that is not the pool's.
  std::size_t registered_from(const void* pointer) const;
  // Whether there may be a block in which that is before the block's end.
  bool has_seams() const noexcept { return has_seams_.load(std::memory_order_relaxed); }

  // Unpins the regions of which nothing is in use or in flight; the number of bytes. Destroys
  // the events that no block needs.
  // Waits for no copy, but unpinning itself may be slow.
  std::size_t trim();
  // What may be pinned in all. Unpins cached memory beyond it at once; what is in use stays.
  void set_limit(std::size_t nbytes);
  void set_huge_pages(bool enabled);
  // Looks at the gates first, so that what is over does not count as in flight.
  PinnedStats stats();
  void reset_peak();

  Runtime& runtime() const noexcept { return runtime_; }

 private:
  friend class PinnedBlock;
  friend struct detail::PinnedRegion;
  friend struct PinnedPoolRegistry;

  using Run = detail::PinnedRun;
  using Region = detail::PinnedRegion;
  using Regions = std::vector<std::unique_ptr<Region>>;
  enum class Tier : std::uint8_t { kFine, kPage, kWhole };

  struct Request {
    std::size_t asked_nbytes;
    std::size_t nbytes;
    Tier tier;
    int node;
    int device;
  };
  class Probing;

  void check_usable() const;
  Request request_for(std::size_t nbytes, int device, int node) const;
  int node_of_device(int device);
  int node_key(int node) const noexcept { return nodes_.size() > 1 ? node : kAnyNode; }

  // Under mutex_; none calls the runtime.
  detail::Shelf& shelf_of(const Region& region);
  Run* take(const Request& request);
  Run* take_anywhere(const Request& request);
  Run* cut(detail::Shelf& shelf, Run* run, std::size_t nbytes, std::size_t asked_nbytes);
  Run* add_region(std::unique_ptr<Region>& owned, const Request& request);
  Run* find(const void* pointer);
  void settle(Run* run) noexcept;
  void put_back(Run* run) noexcept;
  Regions take_free_regions(std::size_t nbytes, bool all_or_nothing);

  // Looks at the gates of up to `max_runs` blocks in flight; whether one became free.
  bool reclaim(std::size_t max_runs);
  // Pins a region and takes the request out of it. Throws OutOfMemory at the limit; then, and
  // only then, `missing_nbytes` says what more it would have needed.
  Run* grow(const Request& request, std::size_t* missing_nbytes);
  bool unpin(std::size_t nbytes, bool all_or_nothing);
  // Returns true when a run became free since there had been `seen_frees`; false when there
  // is nothing to wait for.
  bool wait_for_any(std::uint64_t seen_frees);
  EventPool& events_of(int device);
  void retain_in_graph(Run* run, StreamRef stream);
  static void drop_from_graph(void* use) noexcept;
  void add_use(Run* run, StreamRef stream, std::vector<Event> oldest);
  void end_use(Run* run, bool lost) noexcept;
  void release(Run* run, std::vector<Event>* gates) noexcept;
  void count_failure() noexcept;

  Runtime& runtime_;
  const std::vector<int> nodes_;
  const std::size_t max_registration_nbytes_;
  std::atomic<bool> has_seams_{false};  // since the first region with one

  mutable std::mutex mutex_;
  // All below is guarded by mutex_.
  bool huge_pages_;
  // Events before runs: the runs' gates return to their pools.
  std::map<int, std::unique_ptr<EventPool>> events_;  // by device
  std::map<const std::byte*, Run> runs_;              // by address, in every state
  std::map<const Region*, std::unique_ptr<Region>> regions_;
  std::map<std::pair<int, Tier>, detail::Shelf> shelves_;  // by node and tier
  std::list<Run*> in_flight_;                              // least recently looked at first
  std::map<int, int> node_of_device_;
  std::size_t pinning_nbytes_ = 0;  // of regions being made
  std::uint64_t frees_ = 0;         // times that a run became free
  PinnedStats stats_;               // but for what stats() derives
};

}  // namespace staging
