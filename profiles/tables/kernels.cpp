// Device tables: points come as columns of equal length, since a table has hundreds of them.
#include "profiles/tables/kernels.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/tables/load_once.h"
#include "sim/base/error.h"
#include "sim/graph/core/op_cost.h"

namespace ballast {
namespace {

constexpr const char* kKernelsSchema = "ballast.kernels/1";
constexpr NumberRange kKernelRate{0, 1e12, true};
constexpr NumberRange kFromZero{0, 1e12};
constexpr WholeRange kShapeCount{1, 1 << 20};
constexpr NumberRange kLeftShare{kLeastShare, 1};

// Columns of one series: as many numbers in each as in the first that was read.
class Columns {
 public:
  explicit Columns(JsonReader& reader) : reader_(reader) {}

  std::vector<double> read(const std::string& key, NumberRange range) {
    std::vector<double> column = reader_.numbers(key, range);
    if (rows_ < 0) rows_ = static_cast<int64_t>(column.size());
    if (static_cast<int64_t>(column.size()) != rows_) {
      reader_.fail(key, fmt::format("has {} numbers for {} rows", column.size(), rows_),
                   "give every column of a series the same length");
    }
    return column;
  }
  std::vector<int64_t> read_whole(const std::string& key) {
    std::vector<int64_t> column;
    for (const double value : read(key, kKernelRate)) {
      if (value != std::floor(value)) reader_.fail(key, "holds a fraction", "give whole numbers");
      column.push_back(static_cast<int64_t>(value));
    }
    return column;
  }

 private:
  JsonReader& reader_;
  int64_t rows_ = -1;
};

std::string read_part(JsonReader& reader, const KernelTables& tables) {
  std::vector<std::string> names;
  for (const KernelPart& part : tables.parts) names.push_back(part.name);
  return names[reader.choice("part", names)];
}

KernelPart read_kernel_part(JsonReader reader) {
  KernelPart part;
  part.name = reader.text("part");
  part.multiprocessors = reader.whole("multiprocessors", kShapeCount);
  JsonReader matmul = reader.object("matmul_tflops");
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kE4m3}) {
    const std::string key(to_string(dtype));
    if (matmul.has(key))
      part.matmul[dtype] = FlopRate::from_tflops(matmul.number(key, kKernelRate));
  }
  matmul.finish();
  part.memory = Bandwidth::from_gb_per_s(reader.number("memory_bandwidth_gb_per_s", kKernelRate));
  part.measured = reader.boolean("measured");
  part.source = reader.text("source");
  reader.finish();
  return part;
}

GemmConstants read_gemm_constants(JsonReader reader) {
  GemmConstants constants;
  constants.rate = FlopRate::from_tflops(reader.number("tflops", kKernelRate));
  constants.start = Duration::from_us(reader.number("start_us", kFromZero));
  constants.load = reader.number("load", kFromZero);
  constants.start_k = reader.number("start_k", kFromZero);
  constants.split = Duration::from_us(reader.number("split_us", kFromZero));
  reader.finish();
  return constants;
}

// One series, whose columns `fill` reads into its points.
template <class Series, class Fill>
Series read_series(JsonReader reader, const KernelTables& tables, const Fill& fill) {
  Series series;
  series.part = read_part(reader, tables);
  series.source = reader.text("source");
  fill(Columns(reader), series);
  reader.finish();
  return series;
}

void read_gemm_columns(Columns columns, GemmSeries& series) {
  const std::vector<int64_t> batch = columns.read_whole("batch"), m = columns.read_whole("m"),
                             n = columns.read_whole("n"), k = columns.read_whole("k");
  const std::vector<double> us = columns.read("us", kKernelRate);
  for (size_t i = 0; i < us.size(); ++i) {
    series.points.push_back({batch[i], m[i], n[i], k[i], Duration::from_us(us[i])});
  }
}

GemmTable read_gemm(JsonReader reader, const KernelTables& tables) {
  GemmTable table;
  const bool fp8 = reader.choice("format", {"16-bit", "fp8"}) == 1;
  table.format = fp8 ? ProductFormat::kFp8 : ProductFormat::kAsStored;
  table.under_load = reader.choice("timed", {"in bursts", "under load"}) == 1;
  table.constants = read_gemm_constants(reader.object("model"));
  for (JsonReader& one : reader.objects("series")) {
    table.series.push_back(read_series<GemmSeries>(std::move(one), tables, read_gemm_columns));
  }
  reader.finish();
  return table;
}

void read_attention_columns(Columns columns, AttentionSeries& series) {
  const std::vector<int64_t> head = columns.read_whole("head_size"),
                             tokens = columns.read_whole("tokens");
  const std::vector<double> backward = columns.read("backward", {0, 1}),
                            causal = columns.read("causal", {0, 1}),
                            tflops = columns.read("tflops", kKernelRate);
  for (size_t i = 0; i < tflops.size(); ++i) {
    series.points.push_back(
        {head[i], tokens[i], backward[i] > 0.5, causal[i] > 0.5, FlopRate::from_tflops(tflops[i])});
  }
}

AttentionTable read_attention(JsonReader reader, const KernelTables& tables) {
  AttentionTable table;
  table.kernel = read_choice<AttentionKernel>(reader, "kernel", kAttentionKernels);
  JsonReader model = reader.object("model");
  table.constants.forward = FlopRate::from_tflops(model.number("forward_tflops", kKernelRate));
  table.constants.backward = FlopRate::from_tflops(model.number("backward_tflops", kKernelRate));
  table.constants.half_forward = model.number("half_forward_tokens", kFromZero);
  table.constants.half_backward = model.number("half_backward_tokens", kFromZero);
  table.constants.half_head = model.number("half_head_size", kFromZero);
  table.constants.diagonal = model.number("diagonal_tokens", kFromZero);
  model.finish();
  for (JsonReader& one : reader.objects("series")) {
    table.series.push_back(
        read_series<AttentionSeries>(std::move(one), tables, read_attention_columns));
  }
  reader.finish();
  return table;
}

}  // namespace

KernelTables parse_kernels(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  JsonReader reader(document, source, "");
  reader.choice("schema", {kKernelsSchema});
  KernelTables tables;
  tables.generation = reader.text("generation");
  reader.text("description");
  if (reader.has("code_layouts")) tables.code_layouts = reader.whole("code_layouts", {1, 2});
  if (reader.has("product_beside_collective")) {
    JsonReader one = reader.object("product_beside_collective");
    tables.product_beside_collective = {one.number("share", kLeftShare), one.text("source")};
    one.finish();
  }
  for (JsonReader& one : reader.objects("parts")) {
    tables.parts.push_back(read_kernel_part(std::move(one)));
  }
  for (JsonReader& one : reader.objects("gemm")) {
    tables.gemm.push_back(read_gemm(std::move(one), tables));
  }
  for (JsonReader& one : reader.objects("attention")) {
    tables.attention.push_back(read_attention(std::move(one), tables));
  }
  reader.finish();
  return tables;
}

std::shared_ptr<const KernelModel> load_kernels(const std::string& generation) {
  return load_once<KernelModel>(generation, "kernels", parse_kernels);
}

}  // namespace ballast
