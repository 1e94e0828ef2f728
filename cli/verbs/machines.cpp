#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/flags/inputs.h"
#include "cli/text/listing.h"
#include "cli/text/tables.h"
#include "profiles/store.h"
#include "profiles/templates/machine_template.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// `machines --new`: a file of a machine that nobody shipped.
struct NewMachineFlags {
  std::optional<std::string> file;
  MachineRequest request;
  std::optional<std::string> cpu_memory;
};

void add(VerbParser& parser, NewMachineFlags& flags) {
  const char* const group = "A machine that is not shipped";
  MachineRequest& request = flags.request;
  CLI::Option* file =
      parser.app()
          .add_option(
              "--new", flags.file,
              "Write this file: what no flag says is taken from a shipped machine with that "
              "GPU, and its source begins with 'assumed'")
          ->type_name("FILE")
          ->group(group);
  parser.writes(file);
  const auto add_flag = [&](const char* name, auto& value, const char* help, const char* type) {
    return parser.app().add_option(name, value, help)->type_name(type)->group(group)->needs(file);
  };
  add_flag("--gpu", request.gpu, "A GPU of a shipped machine, or a part of its name: rtx-4090",
           "GPU");
  add_flag("--gpus", request.gpus, "GPUs of a node [1]", "COUNT")->check(above_zero());
  add_flag("--nodes", request.nodes, "Nodes [1]", "COUNT")->check(above_zero());
  add_flag("--link", request.link,
           "Between a GPU and the CPU: pcie4x16, or c2c where the GPU has it [as shipped]", "LINK");
  add_flag("--node", request.node,
           "Between GPUs of a node: GB/s of a GPU in a direction, or as a shipped machine has it "
           "[as shipped, else through the link]",
           "RATE");
  add_flag("--network", request.network,
           "Between nodes: none, 400gbit (of a GPU's card), or as a shipped machine has it [none]",
           "RATE");
  add_flag("--cpu-memory", flags.cpu_memory, "Of a node: 256GB, 2TB [as shipped]", "SIZE");
  add_flag("--cpu-bandwidth", request.cpu_bandwidth_gb_per_s,
           "Of a node's CPU memory, GB/s that programs reach, reading and writing together; the "
           "CPU's optimizer goes as much faster [as shipped]",
           "RATE")
      ->check(above_zero());
  add_flag("--cpu-cores", request.cpu_cores, "Of a node [as shipped]", "COUNT")
      ->check(above_zero());
}

bool write_new_machine(NewMachineFlags& flags, const OutputFlags& output) {
  if (!flags.file) return false;
  const std::string& path = *flags.file;
  if (!path.ends_with(".json")) {
    throw Error("--new " + path, "does not end in .json, as a machine's file must", "rename it");
  }
  if (flags.request.gpu.empty()) {
    throw Error("--new " + path, "no GPU is named", "add --gpu, for example --gpu rtx-4090");
  }
  const size_t slash = path.rfind('/');
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  flags.request.name = file.substr(0, file.size() - std::string(".json").size());
  if (flags.cpu_memory) {
    flags.request.cpu_memory = parse_memory("--cpu-memory", *flags.cpu_memory);
  }
  const MachineTemplate made = machine_template(flags.request);
  save_machine(made.machine, path);
  if (output.json) {
    const nlohmann::ordered_json json = {
        {"file", path}, {"like", made.like}, {"assumed", made.assumed}};
    fmt::print("{}\n", json.dump(1));
    return true;
  }
  fmt::print("{}: {} x {}, from {}\nassumed, and marked so in the file:\n", one_line(path),
             made.machine.devices, made.machine.gpu.name, made.like);
  for (const std::string& line : made.assumed) fmt::print("  {}\n", line);
  fmt::print("to ask: ballast predict --machine {} --devices {} --model NAME\n",
             slash == std::string::npos ? "./" + path : path, made.machine.devices);
  return true;
}

// "421 GB/s", "26.3 GB/s".
std::string show_rate(double gb_per_s) {
  return gb_per_s >= 100 ? fmt::format("{:.0f} GB/s", gb_per_s)
                         : fmt::format("{:.3g} GB/s", gb_per_s);
}

double gb_per_s(Bandwidth rate) { return rate.bytes_per_s * 1e-9; }
double fastest(const Curve& curve) { return curve.points.back().rate * 1e-9; }

std::string wires_text(const std::optional<Interconnect>& wires) {
  return wires ? show_rate(gb_per_s(wires->bandwidth.value)) : "none";
}

nlohmann::ordered_json wires_json(const std::optional<Interconnect>& wires) {
  if (!wires) return nullptr;
  return gb_per_s(wires->bandwidth.value);
}

// Every machine that can be named.
struct Entry {
  std::string name;
  std::string description;
  Machine machine;
};

std::string list_text(const std::vector<Entry>& entries) {
  Table table({{"name", true},
               {"GPUs"},
               {"of a node"},
               {"GPU memory"},
               {"CPU memory a GPU"},
               {"link", true},
               {"in a node"},
               {"network"}});
  for (const auto& [name, description, machine] : entries) {
    const Link& link = machine.link;
    table.add({name, std::to_string(machine.devices), std::to_string(machine.devices_per_node),
               show(machine.gpu.memory.value), show(machine.cpu.memory.value),
               link.kind + " " + show_rate(fastest(link.host_to_device)), wires_text(machine.node),
               wires_text(machine.network)});
  }
  return table.text();
}

std::string list_json(const std::vector<Entry>& entries) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [name, description, machine] : entries) {
    list.push_back({{"name", name},
                    {"description", description},
                    {"gpu", machine.gpu.name},
                    {"devices", machine.devices},
                    {"devices_per_node", machine.devices_per_node},
                    {"gpu_memory_bytes", machine.gpu.memory.value.count},
                    {"cpu_memory_bytes", machine.cpu.memory.value.count},
                    {"link", machine.link.kind},
                    {"link_gb_per_s", fastest(machine.link.host_to_device)},
                    {"node_gb_per_s", wires_json(machine.node)},
                    {"network_gb_per_s", wires_json(machine.network)}});
  }
  return list.dump(1) + "\n";
}

std::vector<Entry> entries_of(const StoreFlag& store) {
  std::vector<Entry> entries;
  for (const Shipped& shipped : shipped_machines()) {
    entries.push_back({shipped.name, shipped.description, load_machine(shipped.name)});
  }
  if (const auto here = profile_of_here(store)) {
    entries.push_back({kHere, "this machine, measured: " + here->description, *here});
  }
  return entries;
}

}  // namespace

int run_machines(Words words) {
  StoreFlag store;
  NewMachineFlags flags;
  Listing listing;
  listing.show = [&](const std::string& name) {
    return machine_json(load_machine_or_here(name, store));
  };
  listing.add_flags = [&](VerbParser& parser) { add(parser, flags); };
  listing.instead = [&](const OutputFlags& output) { return write_new_machine(flags, output); };
  listing.list = [&](const OutputFlags& output) {
    const std::vector<Entry> entries = entries_of(store);
    return output.json ? list_json(entries) : list_text(entries);
  };
  return run_listing("machines", words, listing, &store);
}

}  // namespace ballast
