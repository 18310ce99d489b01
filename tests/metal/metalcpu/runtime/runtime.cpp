// runtime.cpp - fibers, rendezvous, watched memory. Compiled once, uninstrumented; kernels call into it.
//
// One OS thread runs everything, so an execution is repeatable. Every GPU thread is a fiber, threadgroups run one after
// another. Kernels are compiled with the compiler's thread-sanitizer instrumentation, but the functions it calls are the
// ones below: every load and store of memory that another thread could see is checked before it happens.
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "interface.h"

msl_thread_context msl_context;
// Saves the callee-saved registers and the stack pointer to *save, takes those at load. Declared outside the unnamed
// namespace: the compiler must not conclude that nobody else can write what it is given.
extern "C" __attribute__((visibility("hidden"))) void msl_switch(void** save, void* load);

namespace {

constexpr uint32_t max_threads = 1024;
constexpr size_t stack_bytes = 64 * 1024, page = 4096;
constexpr uint32_t many_in_simdgroup = 0xfffffffeu, many = 0xffffffffu, nobody = 0xfffffffdu;

enum waiting { running, at_simdgroup, at_simdgroup_barrier, at_threadgroup_barrier };

struct fiber {
  void* stack_pointer;
  bool done;
  waiting wait;
  const void* site;
  uint32_t flags, mask, parity;
  alignas(16) unsigned char slot[2][16];
};

// Who touched a byte last. Times are the counters below; a pair of accesses without a barrier between them is a race.
struct access { uint32_t thread = nobody, group_time = 0, simd_time = 0; };
struct shadow { access writer, reader; };

struct buffer {
  char* begin;
  size_t bytes;
  const char* name;
  bool output, initialised;
  std::vector<unsigned char> touched;      // bit 0: read, bit 1: written, bit 2: written by an atomic
  std::vector<shadow> shadows;             // outputs only
  uint64_t read_total = 0, write_total = 0;
};

fiber fibers[max_threads];
char* stacks = nullptr;
void* scheduler_stack_pointer;
void (*body)();
int schedule_number;
bool strict, races;
uint32_t current;
char error[512];
void* error_address;
std::vector<buffer> buffers;
char *arena_begin, *arena_end, *tg_begin, *tg_end, *module_begin, *module_end;
std::vector<uint16_t> page_owner;          // 0: guard, otherwise buffer number + 1
std::vector<shadow> tg_shadow;
// Times grow over the whole launch. group_time counts barriers with the matching memory flag, simd_time simdgroup barriers.
uint32_t tg_time = 1, device_time = 1, group_start = 1, device_group_start = 1;
uint32_t simd_tg_time[32], simd_device_time[32];
uint64_t collectives, divergent, barriers, extra_flops, tg_read, tg_written, atomics;

#if defined(__x86_64__)
__asm__(R"(
.text
.globl msl_switch
.hidden msl_switch
.type msl_switch,@function
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#elif defined(__aarch64__)
__asm__(R"(
.text
.globl msl_switch
.hidden msl_switch
.type msl_switch,%function
msl_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "The fiber switch is written for x86-64 and aarch64."
#endif

void to_scheduler() { void* unused; msl_switch(fibers[current].done ? &unused : &fibers[current].stack_pointer, scheduler_stack_pointer); }

void trampoline() {
  body();
  fibers[current].done = true;
  to_scheduler();
  std::abort();
}

void prepare(uint32_t i) {
  fiber& f = fibers[i];
  f.done = false; f.wait = running; f.parity = 0;
  auto top = reinterpret_cast<void**>(stacks + (i + 1) * (stack_bytes + page) - 64);
#if defined(__x86_64__)
  top[0] = reinterpret_cast<void*>(trampoline);
  top[1] = nullptr;
  for (int k = 1; k <= 6; k++) top[-k] = nullptr;
  f.stack_pointer = top - 6;
#else
  void** frame = top - 20;
  for (int k = 0; k < 20; k++) frame[k] = nullptr;
  frame[11] = reinterpret_cast<void*>(trampoline);  // x30
  f.stack_pointer = frame;
#endif
}

void resume(uint32_t i) {
  current = i;
  auto& c = msl_context;
  c.index = i;
  uint32_t x = c.threads_per_threadgroup[0], y = c.threads_per_threadgroup[1];
  c.position_in_threadgroup[0] = i % x;
  c.position_in_threadgroup[1] = i / x % y;
  c.position_in_threadgroup[2] = i / (x * y);
  msl_switch(&scheduler_stack_pointer, fibers[i].stack_pointer);
}

void fault(void* address, const char* format, ...) {
  if (!error[0]) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, sizeof error, format, arguments);
    va_end(arguments);
    error_address = address;
  }
  fibers[current].done = true;
  to_scheduler();
}

uint32_t thread_number() {  // unique in the whole grid as far as ownership of bytes is concerned
  auto& c = msl_context;
  uint32_t group = (c.threadgroup_position[2] * c.threadgroups[1] + c.threadgroup_position[1]) * c.threadgroups[0] + c.threadgroup_position[0];
  return group * max_threads + current;
}

// May `before` be unordered with what the current thread does now?
bool unordered(const access& before, uint32_t me, uint32_t time, uint32_t simd_time, uint32_t start) {
  if (!races || before.thread == nobody || before.thread == me) return false;
  if (before.group_time < start) return true;               // another threadgroup: never ordered
  if (before.group_time < time) return false;               // a threadgroup barrier lies between
  bool same_simdgroup = before.thread == many_in_simdgroup || (before.thread != many && before.thread / 32 == me / 32);
  return !(same_simdgroup && before.simd_time < simd_time); // a simdgroup barrier lies between
}

void note(shadow& s, bool write, uint32_t me, uint32_t time, uint32_t simd_time) {
  if (write) { s.writer = {me, time, simd_time}; s.reader.thread = nobody; return; }
  access& r = s.reader;
  if (r.thread != nobody && r.thread != me && r.group_time == time) {
    bool same = r.thread == many_in_simdgroup || (r.thread != many && r.thread / 32 == me / 32);
    r = {same ? many_in_simdgroup : many, time, simd_time};
  } else {
    r = {me, time, simd_time};
  }
}

void touch_threadgroup(char* address, size_t size, bool write, void* where) {
  size_t at = address - tg_begin;
  uint32_t simd_time = simd_tg_time[current / 32];
  (write ? tg_written : tg_read) += size;
  for (size_t i = at; i < at + size; i++) {
    shadow& s = tg_shadow[i];
    if (s.writer.group_time < group_start) s = shadow();    // left over from an earlier threadgroup
    if (!write && s.writer.thread == nobody) return fault(where, "uninitialised read of threadgroup memory");
    if (unordered(s.writer, current, tg_time, simd_time, 0) || (write && unordered(s.reader, current, tg_time, simd_time, 0)))
      return fault(where, "race in threadgroup memory: threads touch the same byte and no barrier orders them");
    note(s, write, current, tg_time, simd_time);
  }
}

void touch_buffer(buffer& b, char* address, size_t size, bool write, bool atomic, void* where) {
  size_t at = address - b.begin;
  if (at + size > b.bytes)
    return fault(where, "out-of-bounds %s of '%s': byte %zu to %zu of %zu", write ? "write" : "read", b.name, at, at + size, b.bytes);
  if (write && !b.output) return fault(where, "write to input '%s'", b.name);
  (write ? b.write_total : b.read_total) += size;
  unsigned char bit = write ? (atomic ? 6 : 2) : 1;
  if (b.output) {
    uint32_t me = thread_number(), simd_time = simd_device_time[current / 32];
    for (size_t i = at; i < at + size; i++) {
      if (!write && !b.initialised && !(b.touched[i] & 2)) return fault(where, "uninitialised read of output '%s'", b.name);
      if (atomic) continue;
      shadow& s = b.shadows[i];
      if (unordered(s.writer, me, device_time, simd_time, device_group_start) ||
          (write && unordered(s.reader, me, device_time, simd_time, device_group_start)) || (b.touched[i] & 4))
        return fault(where, "race in output '%s': threads touch the same byte and nothing orders them", b.name);
      note(s, write, me, device_time, simd_time);
    }
  }
  for (size_t i = at; i < at + size; i++) b.touched[i] |= bit;
}

void touch(void* pointer, size_t size, bool write, bool atomic, void* where) {
  char* address = static_cast<char*>(pointer);
  if (address >= arena_begin && address < arena_end) {
    uint16_t owner = page_owner[(address - arena_begin) / page];
    if (!owner) {
      const buffer* nearest = &buffers[0];
      auto distance = [&](const buffer& b) { return address < b.begin ? b.begin - address : address - (b.begin + b.bytes); };
      for (auto& b : buffers) if (distance(b) < distance(*nearest)) nearest = &b;
      return fault(where, "out-of-bounds %s near '%s': byte %td of %zu", write ? "write" : "read", nearest->name, address - nearest->begin, nearest->bytes);
    }
    return touch_buffer(buffers[owner - 1], address, size, write, atomic, where);
  }
  if (address >= tg_begin && address < tg_end) {
    if (address + size > tg_end) return fault(where, "out-of-bounds access of threadgroup memory");
    if (atomic) {
      for (char* p = address; p < address + size; p++) {
        shadow& s = tg_shadow[p - tg_begin];
        if (s.writer.group_time < group_start) s = shadow();
        if (s.writer.thread == nobody) return fault(where, "atomic on uninitialised threadgroup memory");
        if (s.writer.thread != many) { if (unordered(s.writer, current, tg_time, simd_tg_time[current / 32], 0)) return fault(where, "race in threadgroup memory between an atomic and a plain access"); }
        s.writer = {many, tg_time, 0};
      }
      return;
    }
    return touch_threadgroup(address, size, write, where);
  }
  if (address >= module_begin && address < module_end) {
    if (write) return fault(where, "write to a program-scope constant, or past the end of threadgroup memory");
    return;
  }
  if (address >= stacks && address < stacks + max_threads * (stack_bytes + page)) {
    size_t mine = (address - stacks) / (stack_bytes + page);
    if (mine != current) return fault(where, "access to another thread's private memory");
    return;
  }
  if (!write && address >= reinterpret_cast<char*>(&msl_context) && address < reinterpret_cast<char*>(&msl_context + 1)) return;
  fault(where, "wild %s: the address belongs to no buffer", write ? "write" : "read");
}

void make_order(std::vector<uint32_t>& order, uint32_t n, uint32_t& random) {
  order.resize(n);
  for (uint32_t i = 0; i < n; i++) order[i] = schedule_number == 1 ? n - 1 - i : i;
  if (schedule_number < 2) return;
  for (uint32_t i = n - 1; i > 0; i--) {
    random = random * 1664525u + 1013904223u;
    std::swap(order[i], order[(random >> 8) % (i + 1)]);
  }
}

void release_simdgroup(uint32_t base, uint32_t end) {
  const void* site = nullptr;
  waiting kind = running;
  for (uint32_t i = base; i < end; i++) {
    fiber& f = fibers[i];
    if (!f.done && (f.wait == at_simdgroup || f.wait == at_simdgroup_barrier)) { site = f.site; kind = f.wait; break; }
  }
  if (!site) return;
  uint32_t mask = 0, flags = 0;
  for (uint32_t i = base; i < end; i++) {
    fiber& f = fibers[i];
    if (!f.done && f.wait == kind && f.site == site) { mask |= 1u << (i - base); flags |= f.flags; }
  }
  collectives++;
  if ((uint32_t)__builtin_popcount(mask) != end - base) {
    divergent++;
    if (strict && !error[0]) snprintf(error, sizeof error, "simdgroup divergence: %d of %u lanes reach a simdgroup operation", __builtin_popcount(mask), end - base);
    else if (kind == at_simdgroup_barrier && !error[0]) snprintf(error, sizeof error, "simdgroup_barrier divergence: not every lane reaches it");
  }
  if (kind == at_simdgroup_barrier) {
    if (flags & 2) simd_tg_time[base / 32]++;
    if (flags & 1) simd_device_time[base / 32]++;
  }
  for (uint32_t i = base; i < end; i++) {
    fiber& f = fibers[i];
    if (mask >> (i - base) & 1) { f.wait = running; f.mask = mask; }
  }
}

bool release_threadgroup(uint32_t n) {
  const void* site = nullptr;
  uint32_t flags = 0;
  for (uint32_t i = 0; i < n; i++) {
    fiber& f = fibers[i];
    if (f.done) { snprintf(error, sizeof error, "threadgroup_barrier divergence: thread %u ended while others wait", i); return false; }
    if (!site) site = f.site, flags = f.flags;
    if (site != f.site) { snprintf(error, sizeof error, "threadgroup_barrier divergence: threads wait at different barriers"); return false; }
  }
  barriers++;
  if (flags & 2) tg_time++;
  if (flags & 1) device_time++;
  for (uint32_t i = 0; i < n; i++) fibers[i].wait = running;
  return true;
}

bool run_threadgroup(uint32_t n, std::vector<uint32_t>& order, uint32_t& random) {
  if (tg_begin != tg_end) std::memset(tg_begin, 0xFF, tg_end - tg_begin);  // NaN for every float type
  group_start = ++tg_time;
  device_group_start = ++device_time;
  for (uint32_t i = 0; i < n; i++) prepare(i);
  for (;;) {
    bool ran = false, live = false;
    make_order(order, n, random);
    for (uint32_t i : order) {
      fiber& f = fibers[i];
      if (f.done) continue;
      live = true;
      if (f.wait == running) { resume(i); ran = true; if (error[0]) return false; }
    }
    if (!live) return true;
    if (ran) continue;
    bool released = false;
    for (uint32_t base = 0; base < n; base += 32) {
      uint32_t end = std::min(base + 32, n);
      for (uint32_t i = base; i < end; i++)
        if (!fibers[i].done && (fibers[i].wait == at_simdgroup || fibers[i].wait == at_simdgroup_barrier)) { release_simdgroup(base, end); released = true; break; }
      if (error[0]) return false;
    }
    if (!released && !release_threadgroup(n)) return false;
  }
}

}  // namespace

extern "C" {

uint32_t msl_publish(const void* value, uint32_t size, const void* site, uint32_t uniform_flops) {
  fiber& f = fibers[current];
  if (size > 16) { msl_fault("a simdgroup operation on more than 16 bytes"); return 0; }
  f.parity ^= 1;  // two slots, so that one rendezvous per operation is enough
  std::memcpy(f.slot[f.parity], value, size);
  f.site = site; f.flags = 0; f.wait = at_simdgroup;
  extra_flops += uniform_flops;
  to_scheduler();
  return fibers[current].mask;
}
const void* msl_published(uint32_t lane) { return fibers[(current & ~31u) + (lane & 31)].slot[fibers[current].parity]; }
uint32_t msl_reduction_order() { return schedule_number > 2 ? 2 : schedule_number; }
void msl_simdgroup_barrier(const void* site, uint32_t flags) {
  fiber& f = fibers[current];
  f.site = site; f.flags = flags; f.wait = at_simdgroup_barrier;
  to_scheduler();
}
void msl_threadgroup_barrier(const void* site, uint32_t flags) {
  fiber& f = fibers[current];
  f.site = site; f.flags = flags; f.wait = at_threadgroup_barrier;
  to_scheduler();
}
void msl_atomic(const void* address, uint32_t size, int reads, int writes) {
  void* p = const_cast<void*>(address);
  atomics++;
  if (writes) touch(p, size, true, true, __builtin_return_address(0));
  if (reads) touch(p, size, false, true, __builtin_return_address(0));
}
void msl_fault(const char* message) { fault(__builtin_return_address(0), "%s", message); }

static void touch_aligned(void* p, size_t size, bool write, void* where) {
  if (reinterpret_cast<uintptr_t>(p) % size) fault(where, "misaligned %s of %zu bytes", write ? "write" : "read", size);
  touch(p, size, write, false, where);
}
#define WATCH(n) \
  void __tsan_read##n(void* p) { touch_aligned(p, n, false, __builtin_return_address(0)); } \
  void __tsan_write##n(void* p) { touch_aligned(p, n, true, __builtin_return_address(0)); } \
  void __tsan_volatile_read##n(void* p) { touch(p, n, false, false, __builtin_return_address(0)); } \
  void __tsan_volatile_write##n(void* p) { touch(p, n, true, false, __builtin_return_address(0)); }
WATCH(1) WATCH(2) WATCH(4) WATCH(8) WATCH(16)
#undef WATCH
void __tsan_unaligned_read2(void* p) { touch(p, 2, false, false, __builtin_return_address(0)); }
void __tsan_unaligned_write2(void* p) { touch(p, 2, true, false, __builtin_return_address(0)); }
void __tsan_unaligned_read4(void* p) { touch(p, 4, false, false, __builtin_return_address(0)); }
void __tsan_unaligned_write4(void* p) { touch(p, 4, true, false, __builtin_return_address(0)); }
void __tsan_unaligned_read8(void* p) { touch(p, 8, false, false, __builtin_return_address(0)); }
void __tsan_unaligned_write8(void* p) { touch(p, 8, true, false, __builtin_return_address(0)); }
void __tsan_unaligned_read16(void* p) { touch(p, 16, false, false, __builtin_return_address(0)); }
void __tsan_unaligned_write16(void* p) { touch(p, 16, true, false, __builtin_return_address(0)); }
void __tsan_read_range(void* p, size_t n) { touch(p, n, false, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { touch(p, n, true, false, __builtin_return_address(0)); }
// The compiler's own checks of arrays with a known size, shift amounts and integer division.
struct source_location { const char* file; uint32_t line, column; };
static void undefined(const char* what, void* data, long long value) {
  auto* at = static_cast<source_location*>(data);
  fault(nullptr, "%s:%u: %s (%lld)", at->file, at->line, what, value);
}
void __ubsan_handle_out_of_bounds(void* data, void* index) { undefined("index outside an array", data, (long long)(intptr_t)index); }
void __ubsan_handle_shift_out_of_bounds(void* data, void*, void* amount) { undefined("shift by an amount outside the type", data, (long long)(intptr_t)amount); }
void __ubsan_handle_divrem_overflow(void* data, void* left, void*) { undefined("integer division by zero or overflow", data, (long long)(intptr_t)left); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

struct msl_buffer { void* address; uint64_t bytes; const char* name; uint32_t output, initialised; };
struct msl_launch {
  void (*entry)();
  void *tg_begin, *tg_end, *module_begin, *module_end, *arena;
  uint64_t arena_bytes;
  msl_buffer* buffers;
  uint32_t buffer_count, grid[3], threadgroup[3], schedule, strict, races;
  void **pointers, **shapes, **strides;
};
struct msl_report {
  uint64_t threads, threadgroups, collectives, divergent, barriers, atomics, extra_flops, tg_read, tg_written;
  char error[512];
  void* error_address;
};

// One launch. Fills `report` and per buffer four numbers: bytes read in total, distinct, written in total, distinct.
int msl_run(const msl_launch* launch, msl_report* report, uint64_t* traffic) {
  if (!stacks) {
    size_t bytes = max_threads * (stack_bytes + page);
    stacks = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) { stacks = nullptr; std::snprintf(report->error, sizeof report->error, "no memory for fiber stacks"); return 1; }
    for (uint32_t i = 0; i < max_threads; i++) mprotect(stacks + i * (stack_bytes + page), page, PROT_NONE);
  }
  body = launch->entry; schedule_number = launch->schedule; strict = launch->strict; races = launch->races;
  tg_begin = static_cast<char*>(launch->tg_begin); tg_end = static_cast<char*>(launch->tg_end);
  module_begin = static_cast<char*>(launch->module_begin); module_end = static_cast<char*>(launch->module_end);
  arena_begin = static_cast<char*>(launch->arena); arena_end = arena_begin + launch->arena_bytes;
  error[0] = 0; error_address = nullptr;
  tg_time = device_time = 1;
  std::fill(simd_tg_time, simd_tg_time + 32, 0); std::fill(simd_device_time, simd_device_time + 32, 0);
  collectives = divergent = barriers = atomics = extra_flops = tg_read = tg_written = 0;
  tg_shadow.assign(tg_end - tg_begin, shadow());
  page_owner.assign(launch->arena_bytes / page, 0);
  buffers.clear();
  for (uint32_t i = 0; i < launch->buffer_count; i++) {
    const msl_buffer& from = launch->buffers[i];
    buffer b{static_cast<char*>(from.address), from.bytes, from.name, from.output != 0, from.initialised != 0, {}, {}};
    b.touched.assign(b.bytes, 0);
    if (b.output) b.shadows.assign(b.bytes, shadow());
    for (size_t p = (b.begin - arena_begin) / page; p * page < (size_t)(b.begin - arena_begin) + b.bytes; p++) page_owner[p] = i + 1;
    buffers.push_back(std::move(b));
  }
  auto& c = msl_context;
  c.buffers = launch->pointers; c.shapes = launch->shapes; c.strides = launch->strides;
  for (int d = 0; d < 3; d++) {
    c.grid[d] = launch->grid[d];
    c.dispatch_threads_per_threadgroup[d] = launch->threadgroup[d];
    c.threadgroups[d] = (c.grid[d] + launch->threadgroup[d] - 1) / launch->threadgroup[d];
  }
  std::vector<uint32_t> order, groups;
  uint32_t random = launch->schedule * 2654435761u + 12345u, total = c.threadgroups[0] * c.threadgroups[1] * c.threadgroups[2];
  make_order(groups, total, random);  // threadgroups have no order either
  uint64_t threads = 0;
  bool good = true;
  for (uint32_t g : groups) {
    uint32_t at[3] = {g % c.threadgroups[0], g / c.threadgroups[0] % c.threadgroups[1], g / (c.threadgroups[0] * c.threadgroups[1])};
    c.count = 1;
    for (int d = 0; d < 3; d++) {
      c.threadgroup_position[d] = at[d];
      c.threads_per_threadgroup[d] = std::min(launch->threadgroup[d], c.grid[d] - at[d] * launch->threadgroup[d]);
      c.count *= c.threads_per_threadgroup[d];
    }
    threads += c.count;
    if (!run_threadgroup(c.count, order, random)) { good = false; break; }
  }
  *report = msl_report{threads, total, collectives, divergent, barriers, atomics, extra_flops, tg_read, tg_written, {}, error_address};
  std::memcpy(report->error, error, sizeof error);
  for (size_t i = 0; i < buffers.size(); i++) {
    uint64_t read = 0, written = 0;
    for (unsigned char t : buffers[i].touched) { read += t & 1; written += t >> 1 & 1; }
    uint64_t row[4] = {buffers[i].read_total, read, buffers[i].write_total, written};
    std::memcpy(traffic + 4 * i, row, sizeof row);
  }
  return good ? 0 : 1;
}
}
