// Our machine JSON, schema "ballast.machine/1". Each number is an object of value, source and
// measured; a curve is two lists of equal length with the same two. Units are in the keys. Keys
// that not every machine has may be left out: power_watts, gpu.nominal_matmul_tflops,
// gpu.attention_tflops, gpu.compute_threads (1; more only where is_host_thread),
// cpu.core_bandwidth_gb_per_s, link.remote_gb_per_s, link.network_share, link.kernel_reads,
// link.kernel_writes, nvme, nvme.both_share, node where a node has one device, network where there
// is one node, and of an interconnect all but its bandwidth and latency.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/shipped.h"
#include "profiles/tables/fabrics.h"
#include "profiles/tables/kernels.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kMachineSchema = "ballast.machine/1";
// Upper ends keep every product in 64 bits; they are far beyond any machine.
constexpr NumberRange kGigabytes{0, 1e8};
constexpr NumberRange kRate{0, 1e8, true};  // GB/s and TFLOP/s
constexpr NumberRange kShare{0, 1, true};
constexpr NumberRange kMicroseconds{0, 1e9};
constexpr NumberRange kAboveZero{0, 1e18, true};
constexpr NumberRange kSizes{1, 1e18};  // bytes, elements or tokens of a curve
constexpr WholeRange kCount{1, 10'000'000};

// The conversions between a key's unit and ours, once for reading and once for writing.
Bytes from_gb(double gb) { return {std::llround(gb * 1e9)}; }
double to_gb(Bytes bytes) { return static_cast<double>(bytes.count) / 1e9; }
double to_gb_per_s(Bandwidth rate) { return rate.bytes_per_s / 1e9; }
double to_tflops(FlopRate rate) { return rate.flops_per_s / 1e12; }
double to_us(Duration time) { return static_cast<double>(time.ps) / 1e6; }
double same(double value) { return value; }

template <class Quantity>
struct Unit {
  NumberRange range;
  Quantity (*read)(double);
  double (*write)(Quantity);
};
constexpr Unit<Bytes> kGb{kGigabytes, from_gb, to_gb};
constexpr Unit<Bandwidth> kGbPerS{kRate, Bandwidth::from_gb_per_s, to_gb_per_s};
constexpr Unit<FlopRate> kTflops{kRate, FlopRate::from_tflops, to_tflops};
constexpr Unit<Duration> kUs{kMicroseconds, Duration::from_us, to_us};
constexpr Unit<double> kPart{kShare, same, same};
constexpr Unit<double> kAmount{kRate, same, same};

// What the two lists of a curve are called, and the units of the second.
struct CurveKeys {
  const char* sizes;
  const char* rates;
  double rate_unit;
};
constexpr CurveKeys kCopyKeys{"bytes", "gb_per_s", 1e9};
constexpr CurveKeys kAdamKeys{"parameters", "parameters_per_s", 1};
constexpr CurveKeys kElementKeys{"elements", "elements_per_s", 1};
constexpr CurveKeys kAttentionKeys{"tokens", "tflops", 1e12};
constexpr CurveKeys kBusKeys{"bytes", "bus_gb_per_s", 1e9};

std::string read_source(JsonReader& reader) {
  const std::string source = reader.text("source");
  if (source.empty()) reader.fail("source", "is empty", "say where the number comes from");
  return source;
}

template <class Quantity>
Sourced<Quantity> read_sourced(JsonReader& owner, const std::string& key,
                               const Unit<Quantity>& unit) {
  JsonReader reader = owner.object(key);
  Sourced<Quantity> result;
  result.value = unit.read(reader.number("value", unit.range));
  result.source = read_source(reader);
  result.measured = reader.boolean("measured");
  reader.finish();
  return result;
}

template <class Quantity>
OrderedJson write_sourced(const Sourced<Quantity>& value, const Unit<Quantity>& unit) {
  return {{"value", rounded(unit.write(value.value))},
          {"source", value.source},
          {"measured", value.measured}};
}

template <class Quantity>
std::optional<Sourced<Quantity>> read_optional(JsonReader& owner, const std::string& key,
                                               const Unit<Quantity>& unit) {
  if (!owner.has(key)) return std::nullopt;
  return read_sourced(owner, key, unit);
}

Curve read_points(JsonReader& reader, const CurveKeys& keys) {
  const std::vector<double> sizes = reader.numbers(keys.sizes, kSizes);
  const std::vector<double> rates = reader.numbers(keys.rates, kAboveZero);
  if (sizes.size() != rates.size()) {
    reader.fail(keys.rates, fmt::format("has {} numbers for {} sizes", rates.size(), sizes.size()),
                "give one rate for each size");
  }
  Curve curve;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0 && sizes[i] <= sizes[i - 1]) {
      reader.fail(keys.sizes, fmt::format("has {:g} after {:g}", sizes[i], sizes[i - 1]),
                  "sort them, each once");
    }
    curve.points.push_back({sizes[i], rates[i] * keys.rate_unit});
  }
  curve.source = read_source(reader);
  curve.measured = reader.boolean("measured");
  return curve;
}

Curve read_curve(JsonReader& owner, const std::string& key, const CurveKeys& keys) {
  JsonReader reader = owner.object(key);
  const Curve curve = read_points(reader, keys);
  reader.finish();
  return curve;
}

OrderedJson write_curve(const Curve& curve, const CurveKeys& keys) {
  std::vector<double> sizes;
  std::vector<double> rates;
  for (const Curve::Point& point : curve.points) {
    sizes.push_back(rounded(point.size));
    rates.push_back(rounded(point.rate / keys.rate_unit));
  }
  return {{keys.sizes, sizes},
          {keys.rates, rates},
          {"source", curve.source},
          {"measured", curve.measured}};
}

// An empty curve is null: nobody has measured it, and cost computes a bound instead.
Curve read_optional_curve(JsonReader& owner, const std::string& key, const CurveKeys& keys) {
  if (owner.raw(key).is_null()) return {};
  return read_curve(owner, key, keys);
}

OrderedJson write_optional_curve(const Curve& curve, const CurveKeys& keys) {
  return curve.empty() ? OrderedJson(nullptr) : write_curve(curve, keys);
}

// Keyed by head size, for example {"128": {"forward": {...}, "backward": {...}}}.
std::vector<AttentionRates> read_attention(JsonReader reader) {
  std::vector<AttentionRates> result;
  for (const std::string& key : reader.keys()) {
    const bool digits =
        !key.empty() && key.size() <= 6 && key.find_first_not_of("0123456789") == std::string::npos;
    JsonReader one = reader.object(key);
    if (!digits) reader.fail(key, "is no head size", "use a number of elements, for example 128");
    AttentionRates rates;
    rates.head_size = std::stoll(key);
    rates.forward = read_curve(one, "forward", kAttentionKeys);
    rates.backward = read_curve(one, "backward", kAttentionKeys);
    one.finish();
    result.push_back(std::move(rates));
  }
  reader.finish();
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.head_size < b.head_size; });
  return result;
}

OrderedJson write_attention(const std::vector<AttentionRates>& attention) {
  OrderedJson json = OrderedJson::object();
  for (const AttentionRates& rates : attention) {
    json[std::to_string(rates.head_size)] = {
        {"forward", write_curve(rates.forward, kAttentionKeys)},
        {"backward", write_curve(rates.backward, kAttentionKeys)}};
  }
  return json;
}

// The tables of a generation, and of the GPU what its part there says unless its own file does.
void read_kernels(JsonReader reader, Gpu& gpu) {
  gpu.kernels.generation = reader.text("generation");
  gpu.kernels.model = load_kernels(gpu.kernels.generation);
  const KernelTables& tables = gpu.kernels.model->tables();
  std::vector<std::string> names;
  for (const KernelPart& part : tables.parts) names.push_back(part.name);
  const KernelPart& part = tables.parts[reader.choice("part", names)];
  gpu.kernels.part = part.name;
  for (const auto& [dtype, rate] : part.matmul) {
    gpu.matmul.try_emplace(dtype, Sourced<FlopRate>{rate, part.measured, part.source});
  }
  if (gpu.memory_bandwidth.source.empty())
    gpu.memory_bandwidth = {part.memory, part.measured, part.source};
  reader.finish();
}

Gpu read_gpu(JsonReader reader) {
  Gpu gpu;
  gpu.name = reader.text("name");
  gpu.memory = read_sourced(reader, "memory_gb", kGb);
  gpu.reserved = read_sourced(reader, "reserved_gb", kGb);
  const bool tables = reader.has("kernels");
  if (!tables || reader.has("memory_bandwidth_gb_per_s")) {
    gpu.memory_bandwidth = read_sourced(reader, "memory_bandwidth_gb_per_s", kGbPerS);
  }
  JsonReader matmul = reader.object("matmul_tflops");
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kBf16, DType::kF16, DType::kI32, DType::kE4m3}) {
    const std::string key(to_string(dtype));
    if (matmul.has(key)) gpu.matmul[dtype] = read_sourced(matmul, key, kTflops);
  }
  matmul.finish();
  if (tables) read_kernels(reader.object("kernels"), gpu);
  gpu.nominal_matmul = read_optional(reader, "nominal_matmul_tflops", kTflops);
  gpu.vector = read_sourced(reader, "vector_tflops", kTflops);
  gpu.attention_efficiency = read_sourced(reader, "attention_efficiency", kPart);
  if (reader.has("attention_tflops")) {
    gpu.attention = read_attention(reader.object("attention_tflops"));
  }
  gpu.launch = read_sourced(reader, "launch_us", kUs);
  gpu.multiprocessors = reader.whole("multiprocessors", kCount);
  gpu.is_host_thread = reader.boolean("is_host_thread");
  // Machines that were measured before there was a choice used one.
  if (reader.has("compute_threads")) gpu.compute_threads = reader.whole("compute_threads", kCount);
  reader.finish();
  return gpu;
}

OrderedJson write_gpu(const Gpu& gpu) {
  OrderedJson matmul = OrderedJson::object();
  for (const auto& [dtype, rate] : gpu.matmul) {
    matmul[std::string(to_string(dtype))] = write_sourced(rate, kTflops);
  }
  OrderedJson json = {{"name", gpu.name}};
  if (!gpu.kernels.generation.empty()) {
    json["kernels"] = {{"generation", gpu.kernels.generation}, {"part", gpu.kernels.part}};
  }
  json["memory_gb"] = write_sourced(gpu.memory, kGb);
  json["reserved_gb"] = write_sourced(gpu.reserved, kGb);
  json["memory_bandwidth_gb_per_s"] = write_sourced(gpu.memory_bandwidth, kGbPerS);
  json["matmul_tflops"] = matmul;
  if (gpu.nominal_matmul) {
    json["nominal_matmul_tflops"] = write_sourced(*gpu.nominal_matmul, kTflops);
  }
  json["vector_tflops"] = write_sourced(gpu.vector, kTflops);
  json["attention_efficiency"] = write_sourced(gpu.attention_efficiency, kPart);
  if (!gpu.attention.empty()) json["attention_tflops"] = write_attention(gpu.attention);
  json["launch_us"] = write_sourced(gpu.launch, kUs);
  json["multiprocessors"] = gpu.multiprocessors;
  json["is_host_thread"] = gpu.is_host_thread;
  if (gpu.is_host_thread) json["compute_threads"] = gpu.compute_threads;
  return json;
}

Cpu read_cpu(JsonReader reader) {
  Cpu cpu;
  cpu.name = reader.text("name");
  cpu.cores = reader.whole("cores", kCount);
  cpu.optimizer_threads = reader.whole("optimizer_threads", kCount);
  cpu.memory = read_sourced(reader, "memory_gb", kGb);
  cpu.reserved = read_sourced(reader, "reserved_gb", kGb);
  cpu.memory_bandwidth = read_sourced(reader, "memory_bandwidth_gb_per_s", kGbPerS);
  cpu.core_bandwidth = read_optional(reader, "core_bandwidth_gb_per_s", kGbPerS);
  JsonReader adam = reader.object("adam");
  for (const std::string& name : adam.keys()) cpu.adam[name] = read_curve(adam, name, kAdamKeys);
  cpu.cast = read_optional_curve(reader, "cast", kElementKeys);
  // Profiles had a rate of gradient norms, which the GPU sums before gradients leave it.
  constexpr const char* kSums = "sum_of_squares";
  if (reader.has(kSums)) static_cast<void>(read_optional_curve(reader, kSums, kElementKeys));
  cpu.dispatch = read_optional(reader, "dispatch_us", kUs);
  reader.finish();
  return cpu;
}

OrderedJson write_cpu(const Cpu& cpu) {
  OrderedJson adam = OrderedJson::object();
  for (const auto& [name, curve] : cpu.adam) adam[name] = write_curve(curve, kAdamKeys);
  OrderedJson json = {{"name", cpu.name},
                      {"cores", cpu.cores},
                      {"optimizer_threads", cpu.optimizer_threads},
                      {"memory_gb", write_sourced(cpu.memory, kGb)},
                      {"reserved_gb", write_sourced(cpu.reserved, kGb)},
                      {"memory_bandwidth_gb_per_s", write_sourced(cpu.memory_bandwidth, kGbPerS)}};
  if (cpu.core_bandwidth) {
    json["core_bandwidth_gb_per_s"] = write_sourced(*cpu.core_bandwidth, kGbPerS);
  }
  json["adam"] = adam;
  json["cast"] = write_optional_curve(cpu.cast, kElementKeys);
  if (cpu.dispatch) json["dispatch_us"] = write_sourced(*cpu.dispatch, kUs);
  return json;
}

Link read_link(JsonReader reader) {
  Link link;
  const std::vector<std::string> kinds = {"c2c", "pcie", "memory"};
  link.kind = kinds[reader.choice("kind", kinds)];
  link.host_to_device = read_curve(reader, "host_to_device", kCopyKeys);
  link.device_to_host = read_curve(reader, "device_to_host", kCopyKeys);
  link.both_total = read_sourced(reader, "both_total_gb_per_s", kGbPerS);
  link.pageable_share = read_sourced(reader, "pageable_share", kPart);
  link.latency = read_sourced(reader, "latency_us", kUs);
  link.remote = read_optional(reader, "remote_gb_per_s", kGbPerS);
  link.network_share = read_optional(reader, "network_share", kPart);
  if (reader.has("kernel_reads")) {
    link.kernel_reads = read_curve(reader, "kernel_reads", kCopyKeys);
  }
  if (reader.has("kernel_writes")) {
    link.kernel_writes = read_curve(reader, "kernel_writes", kCopyKeys);
  }
  reader.finish();
  return link;
}

OrderedJson write_link(const Link& link) {
  OrderedJson json = {{"kind", link.kind},
                      {"host_to_device", write_curve(link.host_to_device, kCopyKeys)},
                      {"device_to_host", write_curve(link.device_to_host, kCopyKeys)},
                      {"both_total_gb_per_s", write_sourced(link.both_total, kGbPerS)},
                      {"pageable_share", write_sourced(link.pageable_share, kPart)},
                      {"latency_us", write_sourced(link.latency, kUs)}};
  if (link.remote) json["remote_gb_per_s"] = write_sourced(*link.remote, kGbPerS);
  if (link.network_share) json["network_share"] = write_sourced(*link.network_share, kPart);
  if (!link.kernel_reads.empty()) json["kernel_reads"] = write_curve(link.kernel_reads, kCopyKeys);
  if (!link.kernel_writes.empty()) {
    json["kernel_writes"] = write_curve(link.kernel_writes, kCopyKeys);
  }
  return json;
}

AllReduceTable read_all_reduce(JsonReader reader) {
  AllReduceTable table;
  table.ranks = reader.whole("ranks", kCount);
  table.nodes = reader.whole("nodes", kCount);
  table.bus = read_points(reader, kBusKeys);
  reader.finish();
  return table;
}

OrderedJson write_all_reduce(const AllReduceTable& table) {
  OrderedJson json = {{"ranks", table.ranks}, {"nodes", table.nodes}};
  json.update(write_curve(table.bus, kBusKeys));
  return json;
}

// Left out, null or "none": the machine has none, which check() refuses where it needs one.
std::optional<Interconnect> read_interconnect(JsonReader& owner, const std::string& key) {
  if (!owner.has(key) || owner.raw(key) == "none") return std::nullopt;
  JsonReader reader = owner.object(key);
  Interconnect result;
  result.bandwidth = read_sourced(reader, "bandwidth_gb_per_s", kGbPerS);
  result.latency = read_sourced(reader, "latency_us", kUs);
  result.switch_reduction = read_optional(reader, "switch_reduction_gb_per_s", kGbPerS);
  if (reader.has("all_reduce")) result.all_reduce = read_all_reduce(reader.object("all_reduce"));
  if (reader.has("point_to_point")) {
    result.point_to_point = read_curve(reader, "point_to_point", kCopyKeys);
  }
  if (reader.has("fabric")) {
    result.fabric = reader.text("fabric");
    result.fabric_model = load_fabric(result.fabric);
  }
  result.multiprocessors = read_optional(reader, "multiprocessors", kAmount);
  reader.finish();
  return result;
}

OrderedJson write_interconnect(const std::optional<Interconnect>& value) {
  if (!value) return nullptr;
  OrderedJson json = {{"bandwidth_gb_per_s", write_sourced(value->bandwidth, kGbPerS)},
                      {"latency_us", write_sourced(value->latency, kUs)}};
  if (value->switch_reduction) {
    json["switch_reduction_gb_per_s"] = write_sourced(*value->switch_reduction, kGbPerS);
  }
  if (!value->fabric.empty()) json["fabric"] = value->fabric;
  if (value->all_reduce) json["all_reduce"] = write_all_reduce(*value->all_reduce);
  if (!value->point_to_point.empty()) {
    json["point_to_point"] = write_curve(value->point_to_point, kCopyKeys);
  }
  if (value->multiprocessors) {
    json["multiprocessors"] = write_sourced(*value->multiprocessors, kAmount);
  }
  return json;
}

Nvme read_nvme(JsonReader reader) {
  Nvme nvme;
  nvme.capacity = read_sourced(reader, "capacity_gb", kGb);
  nvme.read = read_curve(reader, "read", kCopyKeys);
  nvme.write = read_curve(reader, "write", kCopyKeys);
  nvme.latency = read_sourced(reader, "latency_us", kUs);
  nvme.both_share = read_optional(reader, "both_share", kAmount);
  reader.finish();
  return nvme;
}

OrderedJson write_nvme(const Nvme& nvme) {
  OrderedJson json = {{"capacity_gb", write_sourced(nvme.capacity, kGb)},
                      {"read", write_curve(nvme.read, kCopyKeys)},
                      {"write", write_curve(nvme.write, kCopyKeys)},
                      {"latency_us", write_sourced(nvme.latency, kUs)}};
  if (nvme.both_share) json["both_share"] = write_sourced(*nvme.both_share, kAmount);
  return json;
}

}  // namespace

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  return std::stod(fmt::format("{:.14g}", value));
}

Machine machine_from_json(const Json& document, const std::string& source) {
  JsonReader reader(document, source, "");
  reader.choice("schema", {kMachineSchema});
  Machine machine;
  machine.name = reader.text("name");
  machine.description = reader.text("description");
  machine.devices_per_node = reader.whole("devices_per_node", kCount);
  machine.devices = reader.whole("devices", kCount);
  machine.power_watts = read_optional(reader, "power_watts", kAmount);
  machine.gpu = read_gpu(reader.object("gpu"));
  machine.cpu = read_cpu(reader.object("cpu"));
  machine.link = read_link(reader.object("link"));
  machine.node = read_interconnect(reader, "node");
  machine.network = read_interconnect(reader, "network");
  if (reader.has("nvme")) machine.nvme = read_nvme(reader.object("nvme"));
  machine.handover = read_sourced(reader, "handover_us", kUs);
  reader.finish();
  try {
    check(machine);
  } catch (const Error& error) {
    throw Error(source, error.what(), "the machine cannot be used");
  }
  return machine;
}

OrderedJson to_json(const Machine& machine) {
  OrderedJson json = {{"schema", kMachineSchema},
                      {"name", machine.name},
                      {"description", machine.description},
                      {"devices_per_node", machine.devices_per_node},
                      {"devices", machine.devices}};
  if (machine.power_watts) json["power_watts"] = write_sourced(*machine.power_watts, kAmount);
  json["gpu"] = write_gpu(machine.gpu);
  json["cpu"] = write_cpu(machine.cpu);
  json["link"] = write_link(machine.link);
  json["node"] = write_interconnect(machine.node);
  json["network"] = write_interconnect(machine.network);
  if (machine.nvme) json["nvme"] = write_nvme(*machine.nvme);
  json["handover_us"] = write_sourced(machine.handover, kUs);
  return json;
}

Machine parse_machine(std::string_view text, const std::string& source) {
  return machine_from_json(parse_json(text, source), source);
}

Machine load_machine(const std::string& name_or_path) {
  const Found found = find_file(name_or_path, "machines");
  return parse_machine(read_text_file(found.path), found.path);
}

std::string machine_json(const Machine& machine) { return to_text(to_json(machine)); }

void save_machine(const Machine& machine, const std::string& path) {
  atomic_write(path, machine_json(machine) + "\n");
}

}  // namespace ballast
