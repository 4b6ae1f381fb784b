// A device for tests, as a plugin of Paddle's interface for custom devices (device_ext.h).
//
// It computes on the host's memory and processors, but in the order of a GPU:
//
//   host thread    launch  launch  copy ........ launch
//   stream thread          matmul  add  copy     matmul
//
// - A stream is a thread with a queue. Kernels, copies, collectives and events run in its order.
// - A kernel holds the tensors that it uses until it has run.
// - While Paddle's profiler is open, every launch adds a runtime event and every kernel a device
//   event, under the names that CUPTI gives them and with a common correlation id.
// - Collectives run between the processes of one machine, through shared memory, in the order in
//   which a communicator's collectives were launched.
//
// Operators without a kernel here are computed by Paddle's CPU kernels, which copy their inputs from
// the device and their outputs to it.
//
// The environment switches on what real devices do at their worst. The switches are what the tests
// take as true:
//
//   PPPROF_TEST_DEVICE_COUNT=8           number of devices
//   PPPROF_TEST_DEVICE_MEMORY_MB=4096    memory of each device
//   PPPROF_TEST_DEVICE_KERNEL_MS=0       length of each matmul in addition to its computation
//   PPPROF_TEST_DEVICE_SLOWS_MS=0        ... and longer by so much once the profiler has been started
//   PPPROF_TEST_DEVICE_COMM_MS=0         length of each collective in addition to its work
//   PPPROF_TEST_DEVICE_EVENTS=0          the profiler records no event of the device
//   PPPROF_TEST_DEVICE_HOOKS=0           the plugin has no profiler
//   PPPROF_TEST_DEVICE_REFUSES=1         the profiler ends the process when it is prepared; a program
//                                        may set this later
//   PPPROF_TEST_DEVICE_FILES=1           the profiler writes a folder of its own when it is prepared
//   PPPROF_TEST_DEVICE_STUCK=N           the N-th matmul of the process, counted from 1, never ends
//   PPPROF_TEST_DEVICE_STUCK_COMM=N      the N-th collective of the process never ends
//   PPPROF_TEST_DEVICE_STUCK_S=0         both end after so many seconds; 0: never
//   PPPROF_TEST_DEVICE_WAITS=1           a copy to the device waits for the stream, as from pageable
//                                        memory
//   PPPROF_TEST_DEVICE_OFFSET_MS=0       the clock of device events is ahead of the host's
//   PPPROF_TEST_DEVICE_DRIFT_PPM=0       ... and gains so many microseconds in a second
//   PPPROF_TEST_DEVICE_DROPS=0           so many of 100 device events are lost, their launches are not
//   PPPROF_TEST_DEVICE_LIES=1            an event answers that it is reached, always
//   PPPROF_TEST_DEVICE_QUERIES=1         a query of an event or a stream is a runtime call, too
//   PPPROF_TEST_DEVICE_LOG=FOLDER        FOLDER/PID.csv: all work with a name, by the host's clock
#include "paddle/phi/config.h"
#undef PADDLE_WITH_DNNL  // its headers are not in the wheel

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "paddle/phi/api/profiler/trace_event.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/backends/device_base.h"
#include "paddle/phi/backends/device_ext.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_registry.h"

extern "C" {
void cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                 float*, int);
void cblas_dgemm(int, int, int, int, int, int, double, const double*, int, const double*, int,
                 double, double*, int);
}

namespace {

using phi::TracerEventType;

std::string text(const char* name) {
  const char* value = std::getenv((std::string("PPPROF_TEST_DEVICE_") + name).c_str());
  return value ? value : "";
}

double number(const char* name, double otherwise) {
  std::string value = text(name);
  return value.empty() ? otherwise : std::atof(value.c_str());
}

// The switches are read once, when Paddle loads the plugin.
struct Switches {
  int count = number("COUNT", 8);
  size_t memory = number("MEMORY_MB", 4096) * 1e6;
  double kernel_ms = number("KERNEL_MS", 0), slows_ms = number("SLOWS_MS", 0), comm_ms = number("COMM_MS", 0);
  bool events = number("EVENTS", 1), hooks = number("HOOKS", 1);
  int stuck = number("STUCK", 0), stuck_comm = number("STUCK_COMM", 0);
  double stuck_s = number("STUCK_S", 0);
  bool waits = number("WAITS", 0), files = number("FILES", 0);
  double offset_ms = number("OFFSET_MS", 0), drift_ppm = number("DRIFT_PPM", 0);
  int drops = number("DROPS", 0);
  bool lies = number("LIES", 0), queries = number("QUERIES", 0);
  std::string log = text("LOG");
};
const Switches& switches = *new Switches;

uint64_t now_ns() {  // the clock of Paddle's host events
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// The device's own clock at a time of the host's.
uint64_t device_ns(uint64_t host_ns) {
  static const uint64_t first_ns = now_ns();
  double elapsed_ns = static_cast<double>(host_ns) - static_cast<double>(first_ns);
  return host_ns + static_cast<int64_t>(switches.offset_ms * 1e6 + elapsed_ns * switches.drift_ppm / 1e6);
}

void sleep_ms(double milliseconds) {
  if (milliseconds > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
}


void be_stuck() {
  sleep_ms(switches.stuck_s * 1000);
  while (!switches.stuck_s) pause();
}

// ---------------------------------------------------------------------------------- the profiler

// The events since the profiler was started. Paddle collects them after it has stopped.
struct Trace {
  std::atomic<bool> is_open{false};
  std::atomic<int> number{0};  // of the times that the profiler was started
  int recorded = 0;            // events of the device since then, lost ones included
  std::mutex mutex;
  std::vector<phi::RuntimeTraceEvent> calls;
  std::vector<phi::DeviceTraceEvent> work;
};
Trace& trace = *new Trace;
std::atomic<uint32_t> next_correlation{1};

// Write what a stream did to the log, which no switch falsifies.
void log_work(const std::string& name, int stream, uint32_t correlation, uint64_t start_ns, uint64_t end_ns) {
  static FILE* file = std::fopen((switches.log + "/" + std::to_string(getpid()) + ".csv").c_str(), "a");
  if (file) std::fprintf(file, "%lu,%lu,%d,%u,\"%s\"\n", start_ns, end_ns, stream, correlation, name.c_str());
  if (file) std::fflush(file);
}

// A call of the runtime by this thread, from construction to destruction.
class Call {
 public:
  explicit Call(const char* name, uint32_t correlation = next_correlation++)
      : name_(name), correlation_(correlation), start_ns_(now_ns()) {}
  ~Call() {
    if (!trace.is_open || !switches.events || !name_) return;
    std::lock_guard<std::mutex> lock(trace.mutex);
    trace.calls.emplace_back(name_, start_ns_, now_ns(), getpid(), syscall(SYS_gettid), correlation_, 0);
  }
  uint32_t correlation() const { return correlation_; }

 private:
  const char* name_;
  uint32_t correlation_;
  uint64_t start_ns_;
};

void copy_text(char* target, const char* text) {
  std::snprintf(target, phi::kMemKindMaxLen, "%s", text);
}

// ----------------------------------------------------------------------------- streams and events

// What a stream does next: a kernel, a copy, a memset, or (without a name) work that no profiler sees.
struct Work {
  std::function<void()> run;
  std::string name;
  TracerEventType type = TracerEventType::Kernel;
  uint32_t correlation = 0;
  size_t bytes = 0;
  const char *source = "", *target = "";
};

}  // namespace

struct C_CudaGraph_t_st {
  std::vector<Work> work;
  bool is_broken = false;  // by a question, which a capture forbids
};
thread_local C_CudaGraph own_capture = nullptr;  // of this thread

struct C_GraphExec_st {
  std::vector<Work> work;
};

struct C_Stream_st {
  int device, number;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  std::vector<Work> done;  // holds tensors; destroyed by a host thread, as Paddle expects
  bool is_busy = false;
  C_CudaGraph capture = nullptr;  // gets the work instead of the queue
  std::thread::id thread;

  C_Stream_st(int device, int number) : device(device), number(number) {
    std::thread([this] { serve(); }).detach();
  }

  void add(Work work) {
    std::vector<Work> garbage;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (capture) return capture->work.push_back(std::move(work));
      queue.push_back(std::move(work));
      garbage.swap(done);
    }
    changed.notify_all();
  }

  // Return whether the host may not wait for this stream, or ask about it; its capture is lost by that.
  bool forbids() {
    std::lock_guard<std::mutex> lock(mutex);
    if (capture) capture->is_broken = true;
    return capture;
  }

  bool is_idle() {
    std::lock_guard<std::mutex> lock(mutex);
    return queue.empty() && !is_busy;
  }

  void wait() {
    if (std::this_thread::get_id() == thread) return;
    std::vector<Work> garbage;
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !is_busy; });
    garbage.swap(done);
    lock.unlock();
  }

  void serve() {
    thread = std::this_thread::get_id();
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !queue.empty(); });
      Work work = std::move(queue.front());
      queue.pop_front();
      is_busy = true;
      lock.unlock();
      uint64_t start_ns = now_ns();
      work.run();
      record(work, start_ns, now_ns());
      lock.lock();
      is_busy = false;
      done.push_back(std::move(work));
      changed.notify_all();
    }
  }

  void record(const Work& work, uint64_t start_ns, uint64_t end_ns) {
    if (work.name.empty()) return;
    if (!switches.log.empty()) log_work(work.name, number, work.correlation, start_ns, end_ns);
    if (!trace.is_open || !switches.events) return;
    std::lock_guard<std::mutex> lock(trace.mutex);
    if (trace.recorded++ * 37 % 100 < switches.drops) return;
    start_ns = device_ns(start_ns), end_ns = device_ns(end_ns);
    if (work.type == TracerEventType::Kernel) {
      phi::KernelEventInfo info{};
      info.block_x = 128, info.block_y = info.block_z = info.grid_x = info.grid_y = info.grid_z = 1;
      info.completed = end_ns;
      info.blocks_per_sm = 1, info.warps_per_sm = 4, info.occupancy = 50;
      trace.work.emplace_back(work.name, work.type, start_ns, end_ns, device, 1, number, work.correlation, info);
    } else if (work.type == TracerEventType::Memcpy) {
      phi::MemcpyEventInfo info{};
      info.num_bytes = work.bytes;
      copy_text(info.copy_kind, work.name.c_str());
      copy_text(info.src_kind, work.source);
      copy_text(info.dst_kind, work.target);
      trace.work.emplace_back(work.name, work.type, start_ns, end_ns, device, 1, number, work.correlation, info);
    } else {
      phi::MemsetEventInfo info{};
      info.num_bytes = work.bytes;
      copy_text(info.memory_kind, "Device");
      trace.work.emplace_back(work.name, work.type, start_ns, end_ns, device, 1, number, work.correlation, info);
    }
  }
};

struct C_Event_st {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;  // number of the latest record, and of the latest one reached
  bool is_captured = false;            // the latest record

  uint64_t begin() {
    std::lock_guard<std::mutex> lock(mutex);
    return ++recorded;
  }
  uint64_t latest() {
    std::lock_guard<std::mutex> lock(mutex);
    return recorded;
  }
  void reach(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex);
    reached = std::max(reached, number);
    changed.notify_all();
  }
  bool is_reached() {
    std::lock_guard<std::mutex> lock(mutex);
    return reached >= recorded;
  }
  void wait(uint64_t number) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return reached >= number; });
  }
};

namespace {

std::mutex& streams_mutex = *new std::mutex;
std::vector<C_Stream>& streams = *new std::vector<C_Stream>;
thread_local int current_device = 0;

void wait_for_device(int device) {
  std::vector<C_Stream> of_device;
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    for (C_Stream stream : streams)
      if (stream->device == device) of_device.push_back(stream);
  }
  for (C_Stream stream : of_device) stream->wait();
}

void launch(C_Stream stream, std::string name, std::function<void()> run) {
  Call call("cudaLaunchKernel");
  Work work;
  work.run = std::move(run);
  work.name = std::move(name);
  work.correlation = call.correlation();
  stream->add(std::move(work));
}

bool is_captured(int device) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  bool is_any = false;
  for (C_Stream stream : streams) is_any |= stream->device == device && stream->forbids();
  return is_any;
}

C_Status ok() { return C_SUCCESS; }

C_Status set_device(const C_Device device) {
  current_device = device->id;
  return C_SUCCESS;
}

C_Status get_device(const C_Device device) {
  device->id = current_device;
  return C_SUCCESS;
}

C_Status init_device(const C_Device) { return C_SUCCESS; }

C_Status create_stream(const C_Device device, C_Stream* stream) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  *stream = new C_Stream_st(device->id, 7 + static_cast<int>(streams.size()));
  streams.push_back(*stream);
  return C_SUCCESS;
}

C_Status destroy_stream(const C_Device, C_Stream stream) {
  stream->wait();  // the thread stays: a stream is created a few times in a process
  return C_SUCCESS;
}

C_Status query_stream(const C_Device, C_Stream stream) {
  Call call(switches.queries ? "cudaStreamQuery" : nullptr);
  if (stream->forbids()) return C_ERROR;
  return stream->is_idle() ? C_SUCCESS : C_FAILED;
}

C_Status add_callback(const C_Device device, C_Stream stream, C_Callback callback, void* user_data) {
  Work work;
  work.run = [=] {
    C_Status status = C_SUCCESS;
    callback(device, stream, user_data, &status);
  };
  stream->add(std::move(work));
  return C_SUCCESS;
}

C_Status create_event(const C_Device, C_Event* event) {
  *event = new C_Event_st;
  return C_SUCCESS;
}

C_Status record_event(const C_Device, C_Stream stream, C_Event event) {
  Call call("cudaEventRecord");
  uint64_t number = event->begin();
  event->is_captured = stream->capture;
  Work work;
  work.run = [=] { event->reach(number); };
  stream->add(std::move(work));
  return C_SUCCESS;
}

C_Status destroy_event(const C_Device, C_Event event) {
  return C_SUCCESS;  // streams may still reach it
}

C_Status query_event(const C_Device, C_Event event) {
  Call call(switches.queries ? "cudaEventQuery" : nullptr);
  if (own_capture) own_capture->is_broken = true;
  if (own_capture || event->is_captured) return C_ERROR;
  return switches.lies || event->is_reached() ? C_SUCCESS : C_FAILED;
}

C_Status synchronize_device(const C_Device device) {
  Call call("cudaDeviceSynchronize");
  if (is_captured(device->id)) return C_ERROR;
  wait_for_device(device->id);
  return C_SUCCESS;
}

C_Status synchronize_stream(const C_Device, C_Stream stream) {
  Call call("cudaStreamSynchronize");
  if (stream->forbids()) return C_ERROR;
  stream->wait();
  return C_SUCCESS;
}

C_Status synchronize_event(const C_Device, C_Event event) {
  Call call("cudaEventSynchronize");
  event->wait(event->latest());
  return C_SUCCESS;
}

C_Status stream_wait_event(const C_Device, C_Stream stream, C_Event event) {
  Call call("cudaStreamWaitEvent");
  uint64_t number = event->latest();
  Work work;
  work.run = [=] { event->wait(number); };
  stream->add(std::move(work));
  return C_SUCCESS;
}

// --------------------------------------------------------------------------- graphs, as CUDA graphs

C_Status begin_capture(const C_Device, C_Stream stream, C_StreamCaptureMode) {
  Call call("cudaStreamBeginCapture");
  stream->wait();
  std::lock_guard<std::mutex> lock(stream->mutex);
  stream->capture = own_capture = new C_CudaGraph_t_st;
  return C_SUCCESS;
}

C_Status end_capture(const C_Device, C_Stream stream, C_CudaGraph* graph) {
  Call call("cudaStreamEndCapture");
  std::lock_guard<std::mutex> lock(stream->mutex);
  *graph = stream->capture;
  stream->capture = own_capture = nullptr;
  return (*graph)->is_broken ? C_ERROR : C_SUCCESS;
}

C_Status capture_info(const C_Device, C_Stream stream, C_StreamCaptureStatus* status, unsigned long long*, C_CudaGraph*,
                      C_CudaGraphNode*, void**, size_t*) {
  std::lock_guard<std::mutex> lock(stream->mutex);
  *status = stream->capture ? C_StreamCaptureStatusActive : C_StreamCaptureStatusNone;
  return C_SUCCESS;
}

C_Status graph_nodes(C_CudaGraph graph, C_CudaGraphNode*, size_t* num) {
  *num = graph->work.size();
  return C_SUCCESS;
}

C_Status no_setters(C_CudaGraph, C_GraphHookManager* hooks) {
  hooks->size = 0;
  return C_SUCCESS;
}

C_Status instantiate(C_GraphExec* exec, C_CudaGraph* graph, void**, char*, size_t) {
  *exec = new C_GraphExec_st{(*graph)->work};
  return C_SUCCESS;
}

C_Status launch_graph(const C_Device, C_GraphExec exec, C_Stream stream) {
  Call call("cudaGraphLaunch");
  for (Work work : exec->work) {
    work.correlation = call.correlation();
    stream->add(std::move(work));
  }
  return C_SUCCESS;
}

C_Status destroy_graph(C_CudaGraph graph) {
  delete graph;
  return C_SUCCESS;
}

C_Status destroy_exec(C_GraphExec exec) {
  delete exec;
  return C_SUCCESS;
}

// Paddle wants the two handles ahead of a capture, and uses them for nothing here.
C_Status make_blas(const C_Device, C_BLASHandle* handle, C_Stream) {
  *handle = reinterpret_cast<C_BLASHandle>(1);
  return C_SUCCESS;
}

C_Status make_blaslt(const C_Device, C_BLASLtHandle* handle) {
  *handle = reinterpret_cast<C_BLASLtHandle>(1);
  return C_SUCCESS;
}

// ----------------------------------------------------------------------------------------- memory

std::mutex& memory_mutex = *new std::mutex;
std::map<int, size_t>& used_bytes = *new std::map<int, size_t>;

C_Status allocate(const C_Device device, void** pointer, size_t size) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  if (used_bytes[device->id] + size > switches.memory) return C_FAILED;
  *pointer = aligned_alloc(256, (size + 255) / 256 * 256);
  used_bytes[device->id] += size;
  return *pointer ? C_SUCCESS : C_FAILED;
}

C_Status deallocate(const C_Device device, void* pointer, size_t size) {
  Call call("cudaFree");
  wait_for_device(device->id);
  free(pointer);
  std::lock_guard<std::mutex> lock(memory_mutex);
  used_bytes[device->id] -= size;
  return C_SUCCESS;
}

C_Status allocate_host(const C_Device, void** pointer, size_t size) {
  *pointer = aligned_alloc(256, (size + 255) / 256 * 256);
  return *pointer ? C_SUCCESS : C_FAILED;
}

C_Status deallocate_host(const C_Device, void* pointer, size_t) {
  free(pointer);
  return C_SUCCESS;
}

C_Status memory_set(const C_Device device, void* pointer, unsigned char value, size_t size) {
  wait_for_device(device->id);
  Call call("cudaMemset");
  memset(pointer, value, size);
  return C_SUCCESS;
}

C_Status copy_now(const C_Device device, void* target, const void* source, size_t size) {
  Call call("cudaMemcpy");
  wait_for_device(device->id);
  memcpy(target, source, size);
  return C_SUCCESS;
}

void add_copy(C_Stream stream, const Call& call, const char* name, const char* source, const char* target,
              size_t size, std::function<void()> run) {
  Work work;
  work.run = std::move(run);
  work.name = name;
  work.type = TracerEventType::Memcpy;
  work.correlation = call.correlation();
  work.bytes = size;
  work.source = source;
  work.target = target;
  stream->add(std::move(work));
}

C_Status copy_h2d(const C_Device, C_Stream stream, void* target, const void* source, size_t size) {
  Call call("cudaMemcpyAsync");
  if (switches.waits) stream->wait();
  // The caller may change or free its memory at once.
  auto staged = std::make_shared<std::string>(static_cast<const char*>(source), size);
  add_copy(stream, call, "MEMCPY_HtoD", "Pageable", "Device", size,
           [=] { memcpy(target, staged->data(), size); });
  return C_SUCCESS;
}

C_Status copy_d2h(const C_Device, C_Stream stream, void* target, const void* source, size_t size) {
  Call call("cudaMemcpyAsync");
  add_copy(stream, call, "MEMCPY_DtoH", "Device", "Pageable", size, [=] { memcpy(target, source, size); });
  stream->wait();
  return C_SUCCESS;
}

C_Status copy_d2d(const C_Device, C_Stream stream, void* target, const void* source, size_t size) {
  Call call("cudaMemcpyAsync");
  add_copy(stream, call, "MEMCPY_DtoD", "Device", "Device", size, [=] { memmove(target, source, size); });
  return C_SUCCESS;
}

// ------------------------------------------------------------------------------- what Paddle asks

C_Status device_count(size_t* count) {
  *count = switches.count;
  return C_SUCCESS;
}

C_Status device_list(size_t* devices) {
  for (int device = 0; device < switches.count; ++device) devices[device] = device;
  return C_SUCCESS;
}

C_Status memory_stats(const C_Device device, size_t* total, size_t* free_bytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  *total = switches.memory;
  *free_bytes = switches.memory - used_bytes[device->id];
  return C_SUCCESS;
}

C_Status min_chunk_size(const C_Device, size_t* size) {
  *size = 256;
  return C_SUCCESS;
}

C_Status compute_capability(const C_Device, size_t* capability) {
  *capability = 80;
  return C_SUCCESS;
}

C_Status device_properties(const C_Device, void* properties) {
  auto* own = static_cast<phi::DeviceProp*>(properties);
  own->name = "Test Device";
  own->totalGlobalMem = switches.memory;
  return C_SUCCESS;
}

C_Status runtime_version(const C_Device, size_t* version) {
  *version = 12060;
  return C_SUCCESS;
}

C_Status driver_version(const C_Device, size_t* version) {
  *version = 12080;
  return C_SUCCESS;
}

C_Status is_supported(const C_Device, bool* supported) {
  *supported = true;
  return C_SUCCESS;
}

// ------------------------------------------------------------------------------------ collectives

constexpr int kMaxRanks = 16;
constexpr size_t kChunk = 1 << 18, kMail = 1 << 16;

struct Mailbox {  // from one rank to another
  sem_t is_full, is_empty;
  size_t size;
  char data[kMail];
};

struct Shared {  // by the ranks of a communicator
  std::atomic<int> is_ready, attached;
  pthread_barrier_t barrier;
  char chunks[kMaxRanks][kChunk];
  Mailbox mail[kMaxRanks][kMaxRanks];
};

size_t size_of(C_DataType type) {
  switch (type) {
    case BOOL: case UINT8: case INT8: return 1;
    case UINT16: case INT16: case FLOAT16: case BFLOAT16: return 2;
    case UINT32: case INT32: case FLOAT32: return 4;
    case COMPLEX128: return 16;
    default: return 8;
  }
}

template <typename T>
void combine_as(void* into, const void* from, size_t count, C_CCLReduceOp op) {
  T* a = static_cast<T*>(into);
  const T* b = static_cast<const T*>(from);
  for (size_t i = 0; i < count; ++i) {
    if (op == MAX) a[i] = a[i] < b[i] ? b[i] : a[i];
    else if (op == MIN) a[i] = b[i] < a[i] ? b[i] : a[i];
    else if (op == PRODUCT) a[i] = static_cast<T>(a[i] * b[i]);
    else a[i] = static_cast<T>(a[i] + b[i]);
  }
}

void combine(void* into, const void* from, size_t count, C_DataType type, C_CCLReduceOp op) {
  switch (type) {
    case BOOL: case UINT8: return combine_as<uint8_t>(into, from, count, op);
    case INT8: return combine_as<int8_t>(into, from, count, op);
    case INT16: return combine_as<int16_t>(into, from, count, op);
    case INT32: return combine_as<int32_t>(into, from, count, op);
    case INT64: return combine_as<int64_t>(into, from, count, op);
    case FLOAT16: return combine_as<phi::dtype::float16>(into, from, count, op);
    case BFLOAT16: return combine_as<phi::dtype::bfloat16>(into, from, count, op);
    case FLOAT64: return combine_as<double>(into, from, count, op);
    default: return combine_as<float>(into, from, count, op);
  }
}

template <typename T>
void divide_as(void* data, size_t count, int by) {
  T* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(static_cast<float>(values[i]) / by);
}

void divide(void* data, size_t count, C_DataType type, int by) {
  if (type == FLOAT16) divide_as<phi::dtype::float16>(data, count, by);
  else if (type == BFLOAT16) divide_as<phi::dtype::bfloat16>(data, count, by);
  else if (type == FLOAT64) divide_as<double>(data, count, by);
  else divide_as<float>(data, count, by);
}

}  // namespace

struct C_CCLComm_st {
  Shared* shared;
  int rank, size;
  std::string name;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t launched = 0, turn = 0;

  // Run `work` after the collectives of this communicator that were launched before it.
  void in_turn(uint64_t ticket, const std::function<void()>& work) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return turn == ticket; });
    }
    work();
    std::lock_guard<std::mutex> lock(mutex);
    ++turn;
    changed.notify_all();
  }
  void barrier() { pthread_barrier_wait(&shared->barrier); }
};

namespace {

std::atomic<int> collectives{0};

void launch_collective(C_CCLComm comm, C_Stream stream, const std::string& name, std::function<void()> run) {
  uint64_t ticket = comm->launched++;
  bool is_stuck = ++collectives == switches.stuck_comm;
  launch(stream, name, [=] {
    if (is_stuck) be_stuck();
    comm->in_turn(ticket, [&] {
      sleep_ms(switches.comm_ms);
      run();
    });
  });
}

C_Status unique_id_size(size_t* size) {
  *size = 64;
  return C_SUCCESS;
}

C_Status unique_id(C_CCLRootId* id) {
  static std::atomic<int> made{0};
  std::string name = "/ppprof_test_device_" + std::to_string(getpid()) + "_" + std::to_string(made++) + "_" +
                     std::to_string(now_ns());
  std::snprintf(static_cast<char*>(id->data), id->sz, "%s", name.c_str());
  int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return C_INTERNAL_ERROR;
  close(file);
  return C_SUCCESS;
}

C_Status init_comm(size_t size, C_CCLRootId* id, size_t rank, C_CCLComm* comm) {
  const char* name = static_cast<const char*>(id->data);
  int file = shm_open(name, O_RDWR, 0600);
  if (file < 0 || size > kMaxRanks) return C_INTERNAL_ERROR;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return C_INTERNAL_ERROR;
  Shared* shared = static_cast<Shared*>(memory);
  if (rank == 0) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, size);
    for (size_t from = 0; from < size; ++from)
      for (size_t to = 0; to < size; ++to) {
        sem_init(&shared->mail[from][to].is_full, 1, 0);
        sem_init(&shared->mail[from][to].is_empty, 1, 1);
      }
    shared->is_ready = 1;
  }
  while (!shared->is_ready) usleep(1000);
  if (++shared->attached == static_cast<int>(size)) shm_unlink(name);
  *comm = new C_CCLComm_st;
  (*comm)->shared = shared;
  (*comm)->rank = rank;
  (*comm)->size = size;
  (*comm)->name = name;
  return C_SUCCESS;
}

C_Status destroy_comm(C_CCLComm) { return C_SUCCESS; }

C_Status comm_name(C_CCLComm comm, char* name) {
  std::snprintf(name, 64, "%s", comm->name.c_str());
  return C_SUCCESS;
}

// Reduce `count` elements of each rank; ranks that pass no `target` only give theirs.
void reduce_into(C_CCLComm comm, const char* source, char* target, size_t count, C_DataType type, C_CCLReduceOp op) {
  size_t each = size_of(type), step = kChunk / each;
  for (size_t first = 0; first < count; first += step) {
    size_t part = std::min(step, count - first);
    memcpy(comm->shared->chunks[comm->rank], source + first * each, part * each);
    comm->barrier();
    if (target) {
      std::string sum(comm->shared->chunks[0], part * each);
      for (int rank = 1; rank < comm->size; ++rank) combine(&sum[0], comm->shared->chunks[rank], part, type, op);
      if (op == AVG) divide(&sum[0], part, type, comm->size);
      memcpy(target + first * each, sum.data(), part * each);
    }
    comm->barrier();
  }
}

const char* const kReduceOps[] = {"Sum", "Avg", "Max", "Min", "Prod"};

std::string reduction(const char* kind, C_CCLReduceOp op, C_DataType type) {
  return std::string("ncclDevKernel_") + kind + "_" + kReduceOps[op] + "_" + (type == FLOAT32 ? "f32" : "other") +
         "_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
}

C_Status all_reduce(void* send, void* recv, size_t count, C_DataType type, C_CCLReduceOp op, C_CCLComm comm,
                    C_Stream stream) {
  launch_collective(comm, stream, reduction("AllReduce", op, type), [=] {
    reduce_into(comm, static_cast<char*>(send), static_cast<char*>(recv), count, type, op);
  });
  return C_SUCCESS;
}

C_Status reduce(void* send, void* recv, size_t count, C_DataType type, C_CCLReduceOp op, size_t root, C_CCLComm comm,
                C_Stream stream) {
  launch_collective(comm, stream, reduction("Reduce", op, type), [=] {
    char* target = comm->rank == static_cast<int>(root) ? static_cast<char*>(recv) : nullptr;
    reduce_into(comm, static_cast<char*>(send), target, count, type, op);
  });
  return C_SUCCESS;
}

// `count` is the size of each rank's result.
C_Status reduce_scatter(void* send, void* recv, size_t count, C_DataType type, C_CCLReduceOp op, C_CCLComm comm,
                        C_Stream stream) {
  launch_collective(comm, stream, reduction("ReduceScatter", op, type), [=] {
    for (int rank = 0; rank < comm->size; ++rank) {
      const char* source = static_cast<char*>(send) + rank * count * size_of(type);
      reduce_into(comm, source, rank == comm->rank ? static_cast<char*>(recv) : nullptr, count, type, op);
    }
  });
  return C_SUCCESS;
}

C_Status broadcast(void* buffer, size_t count, C_DataType type, size_t root, C_CCLComm comm, C_Stream stream) {
  launch_collective(comm, stream, "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", [=] {
    size_t bytes = count * size_of(type);
    char* data = static_cast<char*>(buffer);
    for (size_t first = 0; first < bytes; first += kChunk) {
      size_t part = std::min(kChunk, bytes - first);
      if (comm->rank == static_cast<int>(root)) memcpy(comm->shared->chunks[root], data + first, part);
      comm->barrier();
      if (comm->rank != static_cast<int>(root)) memcpy(data + first, comm->shared->chunks[root], part);
      comm->barrier();
    }
  });
  return C_SUCCESS;
}

C_Status all_gather(void* send, void* recv, size_t count, C_DataType type, C_CCLComm comm, C_Stream stream) {
  launch_collective(comm, stream, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", [=] {
    size_t bytes = count * size_of(type);
    for (size_t first = 0; first < bytes; first += kChunk) {
      size_t part = std::min(kChunk, bytes - first);
      memcpy(comm->shared->chunks[comm->rank], static_cast<char*>(send) + first, part);
      comm->barrier();
      for (int rank = 0; rank < comm->size; ++rank)
        memcpy(static_cast<char*>(recv) + rank * bytes + first, comm->shared->chunks[rank], part);
      comm->barrier();
    }
  });
  return C_SUCCESS;
}

// Sends and receives of one group run in one kernel, which makes progress on all of them in turn.
struct Transfer {
  bool is_send;
  char* data;
  size_t bytes;
  int peer;
  size_t done = 0;
  bool is_over = false;

  bool advance(C_CCLComm comm) {
    Shared* shared = comm->shared;
    Mailbox& box = is_send ? shared->mail[comm->rank][peer] : shared->mail[peer][comm->rank];
    if (is_over || sem_trywait(is_send ? &box.is_empty : &box.is_full)) return false;
    size_t part = std::min(kMail, bytes - done);
    if (is_send) memcpy(box.data, data + done, part);
    else memcpy(data + done, box.data, part);
    sem_post(is_send ? &box.is_full : &box.is_empty);
    done += part;
    is_over = done == bytes;
    return true;
  }
};

struct Group {
  int depth = 0;
  std::map<std::pair<C_CCLComm, C_Stream>, std::vector<Transfer>> transfers;
};
thread_local Group group;

void launch_transfers() {
  for (auto& item : group.transfers) {
    C_CCLComm comm = item.first.first;
    auto transfers = std::make_shared<std::vector<Transfer>>(std::move(item.second));
    launch_collective(comm, item.first.second, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", [=] {
      // Of two transfers with one peer in one direction, only the first may use the mailbox.
      for (bool is_over = false; !is_over;) {
        is_over = true;
        bool has_advanced = false;
        std::map<std::pair<bool, int>, bool> has_turn;
        for (Transfer& transfer : *transfers) {
          if (transfer.is_over || !has_turn.emplace(std::make_pair(transfer.is_send, transfer.peer), true).second)
            continue;
          has_advanced |= transfer.advance(comm);
        }
        for (Transfer& transfer : *transfers) is_over &= transfer.is_over;
        if (!is_over && !has_advanced) usleep(50);
      }
    });
  }
  group.transfers.clear();
}

C_Status group_start() {
  ++group.depth;
  return C_SUCCESS;
}

C_Status group_end() {
  if (--group.depth == 0) launch_transfers();
  return C_SUCCESS;
}

C_Status add_transfer(bool is_send, void* data, size_t count, C_DataType type, size_t peer, C_CCLComm comm,
                      C_Stream stream) {
  Transfer transfer{is_send, static_cast<char*>(data), count * size_of(type), static_cast<int>(peer)};
  group.transfers[{comm, stream}].push_back(transfer);
  if (group.depth == 0) launch_transfers();
  return C_SUCCESS;
}

C_Status send(void* data, size_t count, C_DataType type, size_t peer, C_CCLComm comm, C_Stream stream) {
  return add_transfer(true, data, count, type, peer, comm, stream);
}

C_Status recv(void* data, size_t count, C_DataType type, size_t peer, C_CCLComm comm, C_Stream stream) {
  return add_transfer(false, data, count, type, peer, comm, stream);
}

C_Status all_to_all(const void** from, const size_t* from_count, const C_DataType* from_type, void** into,
                    const size_t* into_count, const C_DataType* into_type, size_t, size_t size, C_CCLComm comm,
                    C_Stream stream) {
  group_start();
  for (size_t peer = 0; peer < size; ++peer) {
    send(const_cast<void*>(from[peer]), from_count[peer], from_type[peer], peer, comm, stream);
    recv(into[peer], into_count[peer], into_type[peer], peer, comm, stream);
  }
  return group_end();
}

// ------------------------------------------------------------------------------ profiler's hooks

C_Status profiler_initialize(C_Profiler, void**) { return C_SUCCESS; }
C_Status profiler_finalize(C_Profiler, void*) { return C_SUCCESS; }

C_Status profiler_prepare(C_Profiler, void*) {
  if (number("REFUSES", 0)) {  // as CUPTI_CALL does in Paddle's cuda_tracer.cc
    std::fprintf(stderr, "function cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) failed with error "
                         "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\n");
    exit(-1);
  }
  if (switches.files) mkdir("testdevice_profiling", 0777);
  return C_SUCCESS;
}

C_Status profiler_start(C_Profiler, void*) {
  std::lock_guard<std::mutex> lock(trace.mutex);
  trace.calls.clear();
  trace.work.clear();
  ++trace.number, trace.recorded = 0;
  trace.is_open = true;
  return C_SUCCESS;
}

C_Status profiler_stop(C_Profiler, void*) {
  for (int device = 0; device < switches.count; ++device) wait_for_device(device);
  trace.is_open = false;
  return C_SUCCESS;
}

C_Status profiler_collect(C_Profiler profiler, uint64_t start_ns, void*) {
  std::lock_guard<std::mutex> lock(trace.mutex);
  for (auto& event : trace.calls)
    if (event.start_ns >= start_ns) profiler_add_runtime_trace_event(profiler, &event);
  for (auto& event : trace.work)
    if (event.start_ns >= start_ns) profiler_add_device_trace_event(profiler, &event);
  return C_SUCCESS;
}

C_Status axpby(const C_Device, C_Stream stream, C_DataType type, size_t count, float alpha, void* x, float beta,
               void* y) {
  if (type != FLOAT32 && type != FLOAT64) return C_ERROR;
  launch(stream, "void axpby_kernel<float>(float*)", [=] {
    for (size_t i = 0; i < count; ++i) {
      if (type == FLOAT32) {
        float* out = static_cast<float*>(y);
        out[i] = alpha * static_cast<float*>(x)[i] + beta * out[i];
      } else {
        double* out = static_cast<double*>(y);
        out[i] = alpha * static_cast<double*>(x)[i] + beta * out[i];
      }
    }
  });
  return C_SUCCESS;
}

}  // namespace

extern "C" void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>(TEST_DEVICE_NAME);
  params->sub_device_type = const_cast<char*>("simulated");
  C_DeviceInterface* device = params->interface;
  memset(reinterpret_cast<void*>(device), 0, sizeof(C_DeviceInterface));
  device->initialize = device->finalize = ok;
  device->init_device = device->deinit_device = init_device;
  device->set_device = set_device;
  device->get_device = get_device;
  device->create_stream = create_stream;
  device->destroy_stream = destroy_stream;
  device->query_stream = query_stream;
  device->stream_add_callback = add_callback;
  device->create_event = create_event;
  device->record_event = record_event;
  device->destroy_event = destroy_event;
  device->query_event = query_event;
  device->synchronize_device = synchronize_device;
  device->synchronize_stream = synchronize_stream;
  device->synchronize_event = synchronize_event;
  device->stream_wait_event = stream_wait_event;
  device->cuda_stream_begin_capture = begin_capture;
  device->cuda_stream_end_captrue = end_capture;
  device->cuda_stream_capture_info = capture_info;
  device->cuda_graph_get_nodes = graph_nodes;
  device->get_parameter_setter_for_exec_graph = no_setters;
  device->cuda_graph_instantiate = instantiate;
  device->cuda_graph_launch = launch_graph;
  device->cuda_graph_destroy = destroy_graph;
  device->cuda_graph_exec_destroy = destroy_exec;
  device->init_blas_handle = make_blas;
  device->init_blaslt_handle = make_blaslt;
  device->device_memory_allocate = allocate;
  device->device_memory_deallocate = deallocate;
  device->host_memory_allocate = device->unified_memory_allocate = allocate_host;
  device->host_memory_deallocate = device->unified_memory_deallocate = deallocate_host;
  device->device_memory_set = memory_set;
  device->memory_copy_h2d = device->memory_copy_d2h = device->memory_copy_d2d = copy_now;
  device->async_memory_copy_h2d = copy_h2d;
  device->async_memory_copy_d2h = copy_d2h;
  device->async_memory_copy_d2d = copy_d2d;
  device->get_device_count = device_count;
  device->get_device_list = device_list;
  device->device_memory_stats = memory_stats;
  device->device_min_chunk_size = min_chunk_size;
  device->get_device_properties = device_properties;
  device->get_compute_capability = compute_capability;
  device->get_runtime_version = runtime_version;
  device->get_driver_version = driver_version;
  device->is_float16_supported = device->is_bfloat16_supported = is_supported;
  device->xccl_get_comm_name = comm_name;
  device->xccl_get_unique_id_size = unique_id_size;
  device->xccl_get_unique_id = unique_id;
  device->xccl_comm_init_rank = init_comm;
  device->xccl_destroy_comm = destroy_comm;
  device->xccl_all_reduce = all_reduce;
  device->xccl_broadcast = broadcast;
  device->xccl_reduce = reduce;
  device->xccl_all_gather = all_gather;
  device->xccl_reduce_scatter = reduce_scatter;
  device->xccl_group_start = group_start;
  device->xccl_group_end = group_end;
  device->xccl_send = send;
  device->xccl_recv = recv;
  device->xccl_all_to_all = all_to_all;
  if (switches.hooks) {
    device->profiler_initialize = profiler_initialize;
    device->profiler_finalize = profiler_finalize;
    device->profiler_prepare_tracing = profiler_prepare;
    device->profiler_start_tracing = profiler_start;
    device->profiler_stop_tracing = profiler_stop;
    device->profiler_collect_trace_data = profiler_collect;
  }
  device->blas_axpby = axpby;
}

// ---------------------------------------------------------------------------------------- kernels

namespace {

using phi::DenseTensor;

std::atomic<int> matmuls{0};

template <typename Context>
C_Stream stream_of(const Context& context) {
  return reinterpret_cast<C_Stream>(context.stream());
}

void gemm(bool tx, bool ty, int m, int n, int k, const float* x, const float* y, float beta, float* out) {
  cblas_sgemm(101, tx ? 112 : 111, ty ? 112 : 111, m, n, k, 1, x, tx ? m : k, y, ty ? k : n, beta, out, n);
}

void gemm(bool tx, bool ty, int m, int n, int k, const double* x, const double* y, double beta, double* out) {
  cblas_dgemm(101, tx ? 112 : 111, ty ? 112 : 111, m, n, k, 1, x, tx ? m : k, y, ty ? k : n, beta, out, n);
}

void gemm(bool tx, bool ty, int m, int n, int k, const phi::dtype::float16* x, const phi::dtype::float16* y,
          phi::dtype::float16 beta, phi::dtype::float16* out) {
  std::vector<float> a(x, x + m * k), b(y, y + k * n), c(out, out + m * n);
  gemm(tx, ty, m, n, k, a.data(), b.data(), static_cast<float>(beta), c.data());
  std::copy(c.begin(), c.end(), out);
}

// The matrices of a batched product, and which of them belong together.
struct Product {
  int m, n, k;
  std::vector<int64_t> batch, x_batch, y_batch;

  Product(const DenseTensor& x, const DenseTensor& y, bool tx, bool ty) {
    auto a = common::vectorize(x.dims()), b = common::vectorize(y.dims());
    if (a.size() == 1) a = tx ? std::vector<int64_t>{a[0], 1} : std::vector<int64_t>{1, a[0]};
    if (b.size() == 1) b = ty ? std::vector<int64_t>{1, b[0]} : std::vector<int64_t>{b[0], 1};
    m = a[a.size() - (tx ? 1 : 2)], k = a[a.size() - (tx ? 2 : 1)], n = b[b.size() - (ty ? 2 : 1)];
    x_batch.assign(a.begin(), a.end() - 2);
    y_batch.assign(b.begin(), b.end() - 2);
    size_t rank = std::max(x_batch.size(), y_batch.size());
    x_batch.insert(x_batch.begin(), rank - x_batch.size(), 1);
    y_batch.insert(y_batch.begin(), rank - y_batch.size(), 1);
    for (size_t i = 0; i < rank; ++i) batch.push_back(std::max(x_batch[i], y_batch[i]));
  }
  int64_t size() const {
    int64_t total = 1;
    for (int64_t dim : batch) total *= dim;
    return total;
  }
  // Index of the matrix of an operand that belongs to matrix `index` of the result.
  int64_t at(const std::vector<int64_t>& operand, int64_t index) const {
    int64_t result = 0, stride = 1;
    for (size_t i = batch.size(); i-- > 0;) {
      int64_t position = index % batch[i];
      index /= batch[i];
      if (operand[i] != 1) result += position * stride;
      stride *= operand[i];
    }
    return result;
  }
};

template <typename T, typename Context>
void MatmulKernel(const Context& context, const DenseTensor& x, const DenseTensor& y, bool tx, bool ty,
                  DenseTensor* out) {
  context.template Alloc<T>(out);
  DenseTensor a = x, b = y, result = *out;
  bool is_stuck = ++matmuls == switches.stuck;
  bool is_half = std::is_same_v<T, phi::dtype::float16>;
  const char* name = is_half ? "ampere_fp16_s16816gemm_fp16_128x64" : tx ? "ampere_sgemm_128x64_tn" : "ampere_sgemm_128x64_nn";
  launch(stream_of(context), name, [=]() mutable {
    if (is_stuck) be_stuck();
    sleep_ms(switches.kernel_ms + (trace.number ? switches.slows_ms : 0));
    Product p(a, b, tx, ty);
    for (int64_t i = 0; i < p.size(); ++i)
      gemm(tx, ty, p.m, p.n, p.k, a.data<T>() + p.at(p.x_batch, i) * p.m * p.k,
           b.data<T>() + p.at(p.y_batch, i) * p.k * p.n, T(0), result.data<T>() + i * p.m * p.n);
  });
}

template <typename T, typename Context>
void MatmulGradKernel(const Context& context, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad,
                      bool tx, bool ty, DenseTensor* x_grad, DenseTensor* y_grad) {
  DenseTensor a = x, b = y, d = out_grad, da, db;
  bool has_x = x_grad, has_y = y_grad;
  if (has_x) context.template Alloc<T>(x_grad), da = *x_grad;
  if (has_y) context.template Alloc<T>(y_grad), db = *y_grad;
  launch(stream_of(context), "ampere_sgemm_128x64_nt", [=]() mutable {
    sleep_ms(switches.kernel_ms * (has_x + has_y));
    Product p(a, b, tx, ty);
    if (has_x) std::fill_n(da.data<T>(), da.numel(), T(0));
    if (has_y) std::fill_n(db.data<T>(), db.numel(), T(0));
    for (int64_t i = 0; i < p.size(); ++i) {
      int64_t xi = p.at(p.x_batch, i) * p.m * p.k, yi = p.at(p.y_batch, i) * p.k * p.n;
      const T *px = a.data<T>() + xi, *py = b.data<T>() + yi, *pd = d.data<T>() + i * p.m * p.n;
      if (has_x && !tx) gemm(false, !ty, p.m, p.k, p.n, pd, py, T(1), da.data<T>() + xi);
      if (has_x && tx) gemm(ty, true, p.k, p.m, p.n, py, pd, T(1), da.data<T>() + xi);
      if (has_y && !ty) gemm(!tx, false, p.k, p.n, p.m, px, pd, T(1), db.data<T>() + yi);
      if (has_y && ty) gemm(true, tx, p.n, p.k, p.m, pd, px, T(1), db.data<T>() + yi);
    }
  });
}

// Call `combine(x element, y element)` for each element of the broadcast result.
template <typename T, typename Context, typename Combine>
void broadcast_kernel(const Context& context, const char* name, const DenseTensor& x, const DenseTensor& y,
                      DenseTensor* out, Combine combine) {
  DenseTensor a = x, b = y;  // before `out`, which may be one of them
  context.template Alloc<T>(out);
  DenseTensor result = *out;
  launch(stream_of(context), name, [=]() mutable {
    auto dims = common::vectorize(result.dims()), xs = common::vectorize(a.dims()), ys = common::vectorize(b.dims());
    xs.insert(xs.begin(), dims.size() - xs.size(), 1);
    ys.insert(ys.begin(), dims.size() - ys.size(), 1);
    std::vector<int64_t> position(dims.size(), 0);
    for (int64_t i = 0; i < result.numel(); ++i) {
      int64_t xi = 0, yi = 0;
      for (size_t d = 0; d < dims.size(); ++d) {
        xi = xi * xs[d] + (xs[d] == 1 ? 0 : position[d]);
        yi = yi * ys[d] + (ys[d] == 1 ? 0 : position[d]);
      }
      result.data<T>()[i] = combine(a.data<T>()[xi], b.data<T>()[yi]);
      for (size_t d = dims.size(); d-- > 0 && ++position[d] == dims[d];) position[d] = 0;
    }
  });
}

template <typename T, typename Context>
void AddKernel(const Context& context, const DenseTensor& x, const DenseTensor& y, DenseTensor* out) {
  broadcast_kernel<T>(context, "void phi::funcs::VectorizedBroadcastKernel<phi::funcs::AddFunctor<float>>", x, y, out,
                      [](T a, T b) { return static_cast<T>(a + b); });
}

template <typename T, typename Context>
void MultiplyKernel(const Context& context, const DenseTensor& x, const DenseTensor& y, DenseTensor* out) {
  broadcast_kernel<T>(context, "void phi::funcs::VectorizedBroadcastKernel<phi::funcs::MultiplyFunctor<float>>", x, y,
                      out, [](T a, T b) { return static_cast<T>(a * b); });
}

// A CPU kernel would give the result of an operator in place new memory, and tensors that share the
// old memory, as Fleet's fused parameters and gradients do, would keep their old values.

template <typename T, typename Context>
void ScaleKernel(const Context& context, const DenseTensor& x, const phi::Scalar& scale, const phi::Scalar& bias,
                 bool bias_after_scale, DenseTensor* out) {
  DenseTensor source = x;
  context.template Alloc<T>(out);
  DenseTensor result = *out;
  T factor = scale.to<T>(), shift = bias.to<T>();
  launch(stream_of(context), "void phi::funcs::VectorizedElementwiseKernel<phi::ScaleFunctor<float>>", [=]() mutable {
    const T* from = source.data<T>();
    for (int64_t i = 0; i < result.numel(); ++i)
      result.data<T>()[i] = bias_after_scale ? from[i] * factor + shift : (from[i] + shift) * factor;
  });
}

template <typename T, typename Context>
void set_all(const Context& context, const phi::Scalar& value, DenseTensor* out) {
  context.template Alloc<T>(out);
  DenseTensor result = *out;
  T number = value.to<T>();
  launch(stream_of(context), "void phi::funcs::VectorizedElementwiseKernel<phi::FullFunctor<float>>",
         [=]() mutable { std::fill_n(result.data<T>(), result.numel(), number); });
}

template <typename T, typename Context>
void FillKernel(const Context& context, const DenseTensor&, const phi::Scalar& value, DenseTensor* out) {
  set_all<T>(context, value, out);
}

// Paddle calls it to clear gradients, without a fallback to the CPU.
template <typename T, typename Context>
void FullKernel(const Context& context, const phi::IntArray& shape, const phi::Scalar& value, phi::DataType,
                DenseTensor* out) {
  out->Resize(common::make_ddim(shape.GetData()));
  set_all<T>(context, value, out);
}

template <typename T, typename Context>
void AdamwKernel(const Context& context, const DenseTensor& param, const DenseTensor& grad,
                 const DenseTensor& learning_rate, const DenseTensor& moment1, const DenseTensor& moment2,
                 const paddle::optional<DenseTensor>&, const DenseTensor& beta1_pow, const DenseTensor& beta2_pow,
                 const paddle::optional<DenseTensor>&, const paddle::optional<DenseTensor>&, const phi::Scalar& beta1,
                 const phi::Scalar& beta2, const phi::Scalar& epsilon, float lr_ratio, float coeff, bool with_decay,
                 bool, int64_t, bool, bool use_global_beta_pow, bool, DenseTensor* param_out, DenseTensor* moment1_out,
                 DenseTensor* moment2_out, DenseTensor*, DenseTensor* beta1_pow_out, DenseTensor* beta2_pow_out,
                 DenseTensor*) {
  DenseTensor p = param, g = grad, rate = learning_rate, m1 = moment1, m2 = moment2, b1 = beta1_pow, b2 = beta2_pow;
  for (DenseTensor* out : {param_out, moment1_out, moment2_out}) context.template Alloc<T>(out);
  DenseTensor po = *param_out, m1o = *moment1_out, m2o = *moment2_out, b1o, b2o;
  if (!use_global_beta_pow) {
    context.template Alloc<T>(beta1_pow_out), context.template Alloc<T>(beta2_pow_out);
    b1o = *beta1_pow_out, b2o = *beta2_pow_out;
  }
  T decay1 = beta1.to<T>(), decay2 = beta2.to<T>(), least = epsilon.to<T>();
  launch(stream_of(context), "void phi::AdamWKernelREG<float, float, float>", [=]() mutable {
    T lr = rate.data<T>()[0] * static_cast<T>(lr_ratio), pow1 = b1.data<T>()[0], pow2 = b2.data<T>()[0];
    T step = lr / (1 - pow1), root = std::sqrt(1 - pow2);
    for (int64_t i = 0; i < p.numel(); ++i) {
      T value = p.data<T>()[i], slope = g.data<T>()[i];
      if (with_decay) value -= lr * static_cast<T>(coeff) * value;
      T mean = decay1 * m1.data<T>()[i] + (1 - decay1) * slope;
      T square = decay2 * m2.data<T>()[i] + (1 - decay2) * slope * slope;
      m1o.data<T>()[i] = mean;
      m2o.data<T>()[i] = square;
      po.data<T>()[i] = value - step * (mean / (std::sqrt(square) / root + least));
    }
    if (!use_global_beta_pow) b1o.data<T>()[0] = decay1 * pow1, b2o.data<T>()[0] = decay2 * pow2;
  });
}

template <typename T, typename Context>
void EmbeddingGradKernel(const Context& context, const DenseTensor& input, const DenseTensor& weight,
                         const DenseTensor& out_grad, int64_t padding_idx, DenseTensor* weight_grad) {
  context.template Alloc<T>(weight_grad);
  DenseTensor ids = input, grad = out_grad, result = *weight_grad;
  int64_t width = weight.dims()[1];
  launch(stream_of(context), "void phi::EmbeddingGradKernel<float, long>", [=]() mutable {
    std::fill_n(result.data<T>(), result.numel(), T(0));
    for (int64_t i = 0; i < ids.numel(); ++i) {
      int64_t id = ids.dtype() == phi::DataType::INT32 ? ids.data<int32_t>()[i] : ids.data<int64_t>()[i];
      if (id == padding_idx) continue;
      for (int64_t j = 0; j < width; ++j) result.data<T>()[id * width + j] += grad.data<T>()[i * width + j];
    }
  });
}

// Classes outside of the range get a row of zeros, as on a GPU; Paddle's CPU kernel rejects them.
template <typename T, typename Context>
void OneHotKernel(const Context& context, const DenseTensor& x, const phi::Scalar& num_classes, DenseTensor* out) {
  auto dims = out->dims();
  if (dims[dims.size() - 1] == -1) dims[dims.size() - 1] = num_classes.to<int64_t>();
  out->Resize(dims);
  context.template Alloc<float>(out);
  DenseTensor classes = x, result = *out;
  int64_t width = dims[dims.size() - 1];
  launch(stream_of(context), "void phi::FillOutputKernel<long, float>", [=]() mutable {
    std::fill_n(result.data<float>(), result.numel(), 0.0f);
    for (int64_t i = 0; i < classes.numel(); ++i) {
      int64_t index = classes.data<T>()[i];
      if (index >= 0 && index < width) result.data<float>()[i * width + index] = 1;
    }
  });
}

// Fleet splits fused parameters by a call that would leave results of a CPU kernel on the CPU.
template <typename T, typename Context>
void SplitKernel(const Context& context, const DenseTensor& x, const phi::IntArray&, const phi::Scalar& axis_scalar,
                 std::vector<DenseTensor*> outs) {
  int axis = axis_scalar.to<int>();
  if (axis < 0) axis += x.dims().size();
  int64_t outer = 1, inner = 1, width = x.dims()[axis];
  for (int i = 0; i < axis; ++i) outer *= x.dims()[i];
  for (int i = axis + 1; i < x.dims().size(); ++i) inner *= x.dims()[i];
  DenseTensor source = x;
  std::vector<DenseTensor> results;
  std::vector<int64_t> widths;
  for (DenseTensor* out : outs) {
    context.template Alloc<T>(out);
    results.push_back(*out);
    widths.push_back(out->numel() / (outer * inner));
  }
  launch(stream_of(context), "void phi::funcs::SplitKernel_<float>", [=]() mutable {
    int64_t first = 0;
    for (size_t k = 0; k < results.size(); ++k) {
      int64_t part = widths[k] * inner;
      for (int64_t row = 0; row < outer; ++row)
        memcpy(results[k].data<T>() + row * part, source.data<T>() + (row * width + first) * inner, part * sizeof(T));
      first += widths[k];
    }
  });
}

// One element of attention's matrix of scores, from 0 to 1; the same for the same numbers.
double random_number(int64_t seed, int64_t offset, int64_t element) {
  uint64_t bits = static_cast<uint64_t>(seed) * 0x9E3779B97F4A7C15 + offset + element * 0xD1342543DE82EF95;
  for (uint64_t factor : {0xBF58476D1CE4E5B9, 0x94D049BB133111EB}) bits = (bits ^ (bits >> 31)) * factor;
  return static_cast<double>(bits >> 11) / (1ull << 53);
}

// Attention of shape (batch, length, heads, size): what Paddle's kernels for GPUs compute, row by row.
template <typename T>
struct Attention {
  const T *q, *k, *v;
  int64_t batch, length, keys, heads, size;
  bool causal;
  double dropout;
  int64_t seed, offset;

  int64_t at(int64_t b, int64_t row, int64_t of, int64_t head) const { return ((b * of + row) * heads + head) * size; }
  int64_t end(int64_t row) const { return causal ? std::max<int64_t>(0, row + 1 + keys - length) : keys; }

  // Call `use(b, head, row, scores)` for each row of scores, before their softmax.
  template <typename Use>
  void rows(Use use) const {
    std::vector<double> scores(keys);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t row = 0; row < length; ++row) {
          for (int64_t key = 0; key < end(row); ++key) {
            const T *x = q + at(b, row, length, head), *y = k + at(b, key, keys, head);
            double sum = 0;
            for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(x[i]) * y[i];
            scores[key] = sum / std::sqrt(static_cast<double>(size));
          }
          use(b, head, row, scores);
        }
  }
  // Factor of dropout: 0, or the inverse of the share that is kept.
  double kept(int64_t b, int64_t head, int64_t row, int64_t key) const {
    if (dropout == 0) return 1;
    double drawn = random_number(seed, offset, ((b * heads + head) * length + row) * keys + key);
    return drawn < dropout ? 0 : 1 / (1 - dropout);
  }
};

template <typename T>
Attention<T> attention_of(const DenseTensor& q, const DenseTensor& k, const DenseTensor& v, const int64_t* seed,
                          double dropout, bool causal) {
  return {q.data<T>(), k.data<T>(), v.data<T>(), q.dims()[0], q.dims()[1], k.dims()[1], q.dims()[2],
          q.dims()[3], causal,      dropout,     seed[0],     seed[1]};
}

template <typename T, typename Context>
void FlashAttnKernel(const Context& context, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                     const paddle::optional<DenseTensor>& fixed_seed_offset, const paddle::optional<DenseTensor>&,
                     float dropout, bool causal, bool, bool is_test, const std::string&, DenseTensor* out,
                     DenseTensor*, DenseTensor* softmax_lse, DenseTensor* seed_offset) {
  softmax_lse->Resize({q.dims()[0], q.dims()[2], q.dims()[1]});
  seed_offset->Resize({2});
  context.template Alloc<T>(out), context.template Alloc<float>(softmax_lse), context.template Alloc<int64_t>(seed_offset);
  DenseTensor a = q, b = k, c = v, result = *out, sums = *softmax_lse, seed = *seed_offset, fixed;
  bool is_fixed = fixed_seed_offset.is_initialized();
  if (is_fixed) fixed = *fixed_seed_offset;
  int64_t drawn = dropout > 0 && !is_fixed ? static_cast<int64_t>(context.GetGenerator()->Random64()) : 0;
  double rate = is_test ? 0 : dropout;
  launch(stream_of(context), "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", [=]() mutable {
    seed.data<int64_t>()[0] = is_fixed ? fixed.data<int64_t>()[0] : drawn;
    seed.data<int64_t>()[1] = is_fixed ? fixed.data<int64_t>()[1] : 0;
    auto attention = attention_of<T>(a, b, c, seed.data<int64_t>(), rate, causal);
    attention.rows([&](int64_t batch, int64_t head, int64_t row, std::vector<double>& scores) {
      int64_t end = attention.end(row);
      double highest = end ? *std::max_element(scores.begin(), scores.begin() + end) : 0, sum = 0;
      for (int64_t key = 0; key < end; ++key) sum += std::exp(scores[key] - highest);
      double whole = highest + std::log(sum);
      sums.data<float>()[(batch * attention.heads + head) * attention.length + row] = whole;
      std::vector<double> values(attention.size, 0);
      for (int64_t key = 0; key < end; ++key) {
        double weight = std::exp(scores[key] - whole) * attention.kept(batch, head, row, key);
        const T* from = attention.v + attention.at(batch, key, attention.keys, head);
        for (int64_t i = 0; i < attention.size; ++i) values[i] += weight * from[i];
      }
      std::copy(values.begin(), values.end(), result.data<T>() + attention.at(batch, row, attention.length, head));
    });
  });
}

template <typename T, typename Context>
void FlashAttnGradKernel(const Context& context, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                         const DenseTensor&, const DenseTensor& softmax_lse, const DenseTensor& seed_offset,
                         const paddle::optional<DenseTensor>&, const DenseTensor& out_grad, float dropout, bool causal,
                         DenseTensor* q_grad, DenseTensor* k_grad, DenseTensor* v_grad) {
  DenseTensor a = q, b = k, c = v, sums = softmax_lse, seed = seed_offset, d = out_grad;
  DenseTensor results[3];
  DenseTensor* grads[3] = {q_grad, k_grad, v_grad};
  for (int n = 0; n < 3; ++n) {
    results[n].Resize((n ? k : q).dims());
    DenseTensor* grad = grads[n] ? grads[n] : &results[n];
    context.template Alloc<T>(grad);
    results[n] = *grad;
  }
  DenseTensor dq = results[0], dk = results[1], dv = results[2];
  launch(stream_of(context), "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<float>", [=]() mutable {
    auto attention = attention_of<T>(a, b, c, seed.data<int64_t>(), dropout, causal);
    std::vector<double> to_q(dq.numel(), 0), to_k(dk.numel(), 0), to_v(dv.numel(), 0);
    attention.rows([&](int64_t batch, int64_t head, int64_t row, std::vector<double>& scores) {
      int64_t end = attention.end(row), at_row = attention.at(batch, row, attention.length, head);
      const T* slope = d.data<T>() + at_row;
      double whole = sums.data<float>()[(batch * attention.heads + head) * attention.length + row], mean = 0;
      std::vector<double> weights(end), slopes(end, 0);
      for (int64_t key = 0; key < end; ++key) {
        int64_t at_key = attention.at(batch, key, attention.keys, head);
        double kept = attention.kept(batch, head, row, key);
        weights[key] = std::exp(scores[key] - whole);
        for (int64_t i = 0; i < attention.size; ++i) {
          to_v[at_key + i] += weights[key] * kept * slope[i];
          slopes[key] += kept * slope[i] * attention.v[at_key + i];
        }
        mean += weights[key] * slopes[key];
      }
      for (int64_t key = 0; key < end; ++key) {
        int64_t at_key = attention.at(batch, key, attention.keys, head);
        double of_score = weights[key] * (slopes[key] - mean) / std::sqrt(static_cast<double>(attention.size));
        for (int64_t i = 0; i < attention.size; ++i) {
          to_q[at_row + i] += of_score * attention.k[at_key + i];
          to_k[at_key + i] += of_score * attention.q[at_row + i];
        }
      }
    });
    std::copy(to_q.begin(), to_q.end(), dq.data<T>());
    std::copy(to_k.begin(), to_k.end(), dk.data<T>());
    std::copy(to_v.begin(), to_v.end(), dv.data<T>());
  });
}

}  // namespace

PD_REGISTER_PLUGIN_KERNEL(one_hot, TEST_DEVICE, ALL_LAYOUT, OneHotKernel, int32_t, int64_t) {
  kernel->OutputAt(0).SetDataType(phi::DataType::FLOAT32);
}
PD_REGISTER_PLUGIN_KERNEL(split, TEST_DEVICE, ALL_LAYOUT, SplitKernel, float, double, int32_t, int64_t) {}
PD_REGISTER_PLUGIN_KERNEL(matmul, TEST_DEVICE, ALL_LAYOUT, MatmulKernel, float, double, phi::dtype::float16) {}
PD_REGISTER_PLUGIN_KERNEL(matmul_grad, TEST_DEVICE, ALL_LAYOUT, MatmulGradKernel, float, double) {}
PD_REGISTER_PLUGIN_KERNEL(add, TEST_DEVICE, ALL_LAYOUT, AddKernel, float, double, int32_t, int64_t) {}
PD_REGISTER_PLUGIN_KERNEL(multiply, TEST_DEVICE, ALL_LAYOUT, MultiplyKernel, float, double, int32_t, int64_t) {}
PD_REGISTER_PLUGIN_KERNEL(scale, TEST_DEVICE, ALL_LAYOUT, ScaleKernel, float, double, int32_t, int64_t) {}
PD_REGISTER_PLUGIN_KERNEL(fill, TEST_DEVICE, ALL_LAYOUT, FillKernel, float, double, int32_t, int64_t, bool) {}
PD_REGISTER_PLUGIN_KERNEL(full, TEST_DEVICE, ALL_LAYOUT, FullKernel, float, double, int32_t, int64_t, bool) {}
PD_REGISTER_PLUGIN_KERNEL(adamw, TEST_DEVICE, ALL_LAYOUT, AdamwKernel, float, double) {}
PD_REGISTER_PLUGIN_KERNEL(embedding_grad, TEST_DEVICE, ALL_LAYOUT, EmbeddingGradKernel, float, double) {}
PD_REGISTER_PLUGIN_KERNEL(flash_attn, TEST_DEVICE, ALL_LAYOUT, FlashAttnKernel, float, double) {}
PD_REGISTER_PLUGIN_KERNEL(flash_attn_grad, TEST_DEVICE, ALL_LAYOUT, FlashAttnGradKernel, float, double) {}
