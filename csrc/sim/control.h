// How a test looks into the simulated device and steers it, from C or through ctypes.
//
// Purpose: what CUDA has no call for. `staging.sim` is the Python side of this header.
// Owner: the process. Thread-safety: every function may be called from any thread. None of
//   them is counted or recorded, and none is a call of the runtime for forward progress.
// Functions that return int return 0 for success and -1 for an argument that makes no sense
// or a state that does not permit it, unless they say otherwise.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// -- calls -----------------------------------------------------------------------------
int staging_sim_call_count(void);
const char* staging_sim_call_name(int index);
// One count for each call, in the order of the names.
void staging_sim_counters(uint64_t* out);

struct staging_sim_call {
  const char* name;
  uint64_t stream;  // the handle that was passed
  uint64_t nbytes;
  int kind;  // cudaMemcpyKind, -1 where the call is no copy
  int result;
  int device;  // current at the call
  int thread;  // of the operating system
};
// Starts an empty record of at most `limit` calls.
void staging_sim_record_start(size_t limit);
void staging_sim_record_stop(void);
// Copies up to `count` entries from `first` on; returns how many.
size_t staging_sim_record_read(struct staging_sim_call* out, size_t first, size_t count);
// Calls that found the record full.
size_t staging_sim_record_dropped(void);

// -- faults ----------------------------------------------------------------------------
// The `nth` next call of `call` fails with `code`. Returns a positive number to remove it by.
int staging_sim_fault_add(const char* call, uint64_t nth, int code, int sticky, int deferred);
// The same, of the calls from files whose path contains `library`.
int staging_sim_fault_add_in(const char* library, const char* call, uint64_t nth, int code,
                             int sticky, int deferred);
// Returns how often it happened (0 or 1).
int staging_sim_fault_remove(int fault);
void staging_sim_fault_clear(void);

// -- schedules -------------------------------------------------------------------------
// Drains all streams first; -1 while a stream is held and has work.
int staging_sim_set_policy(const char* policy, uint64_t seed);
const char* staging_sim_policy(void);
uint64_t staging_sim_seed(void);
// 0: nothing runs on its own. Returns the milliseconds that were set before.
int staging_sim_set_progress_ms(int idle_ms);
// Pieces of work that have not run yet.
size_t staging_sim_pending(void);
// Runs one ready piece, the first of the stream that has waited longest. 0: there was none.
int staging_sim_run_one(void);
// Runs until nothing is pending; host functions have returned, too.
void staging_sim_run_all(void);
// Keeps a stream from running anything (1) or lets it run again (0). Holds are counted.
int staging_sim_hold(uint64_t stream, int held);

// -- what went wrong, and what is alive --------------------------------------------------
size_t staging_sim_report_count(void);
// Copies a report's kind and message, cut to the buffers. -1: there is no such report.
int staging_sim_report(size_t index, char* kind, size_t kind_nbytes, char* message,
                       size_t message_nbytes);
void staging_sim_report_clear(void);

struct staging_sim_objects {
  uint64_t events, streams, graphs, executables, user_objects;
  uint64_t pinned_allocations, pinned_nbytes;
  uint64_t registrations, registered_nbytes;
  uint64_t device_allocations, device_nbytes;
};
void staging_sim_objects(struct staging_sim_objects* out);
// The error that destroyed the context, or 0.
int staging_sim_lost(void);
// Repairs the context and clears the calling thread's last error, so that the next test may
// go on. Nothing in CUDA does this.
void staging_sim_recover(void);
// How many devices there are, the calling thread's current one, and an attribute of one, for
// the stand-in of the driver.
int staging_sim_device_count(void);
int staging_sim_current_device(void);
int staging_sim_device_attribute(int* value, int attribute, int device);
// Whether the device's primary context exists.
int staging_sim_context_active(int device);
// How device memory is kept from the host: "pkey" or "mprotect".
const char* staging_sim_protection(void);

#ifdef __cplusplus
}
#endif
