// interface.h - what a translated kernel and the runtime say to each other (plain C types only).
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// The GPU thread that is running now. Filled by the runtime before it resumes a fiber.
struct msl_thread_context {
  uint32_t position_in_threadgroup[3];
  uint32_t threadgroup_position[3];
  uint32_t threads_per_threadgroup[3];  // of this threadgroup; smaller at the edge of the grid
  uint32_t dispatch_threads_per_threadgroup[3];
  uint32_t grid[3];          // threads
  uint32_t threadgroups[3];  // threadgroups per grid
  uint32_t index;            // linear index in the threadgroup
  uint32_t count;            // threads in this threadgroup
  void** buffers;            // inputs, then outputs
  void** shapes;             // per input: int32_t*
  void** strides;            // per input: int64_t*, in elements
};
extern msl_thread_context msl_context;

// Simdgroup rendezvous: give `size` bytes, wait for the active lanes at the same site, get their mask. `uniform_flops` is
// added to the arithmetic count of this lane (the cost of a tree on the GPU).
uint32_t msl_publish(const void* value, uint32_t size, const void* site, uint32_t uniform_flops);
// What lane `lane` of this simdgroup published in the current rendezvous.
const void* msl_published(uint32_t lane);
// 0: butterfly, 1: left to right, 2: right to left. Metal does not specify the order of simd_sum: every schedule uses another.
uint32_t msl_reduction_order();
void msl_simdgroup_barrier(const void* site, uint32_t flags);
void msl_threadgroup_barrier(const void* site, uint32_t flags);
// An atomic read-modify-write, load (writes = 0) or store (reads = 0) is about to happen.
void msl_atomic(const void* address, uint32_t size, int reads, int writes);
void msl_fault(const char* message);
}
