// Pass `direct access`: kernels of the GPU that read and write CPU memory themselves, where
// gradients leave and weights return, instead of copies (StateTransfers::kDirect).
//
//   pack, copy out, norm of what is packed  ->  pack into CPU memory, norm of what it packs
//   copy in, unpack                         ->  unpack out of CPU memory
//   a copy without a kernel beside it       ->  such a kernel, of one type
//
// The values are the same, and so are the lanes. Norms, state and activations are still copied:
// they pass no kernel on their way.
#include <algorithm>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

bool writes_to(const Op& op, TensorId tensor) {
  return std::any_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    return access.tensor == tensor && access.mode != AccessMode::kRead;
  });
}

const Access* first_of(const Op& op, Role role) {
  const auto found = std::find_if(op.accesses.begin(), op.accesses.end(),
                                  [&](const Access& access) { return access.role == role; });
  return found == op.accesses.end() ? nullptr : &*found;
}

std::vector<Access> those_of(const Op& op, Role role) {
  std::vector<Access> found;
  std::copy_if(op.accesses.begin(), op.accesses.end(), std::back_inserter(found),
               [&](const Access& access) { return access.role == role; });
  return found;
}

void replace(Op& op, Role role, const std::vector<Access>& by) {
  std::erase_if(op.accesses, [&](const Access& access) { return access.role == role; });
  op.accesses.insert(op.accesses.begin(), by.begin(), by.end());
}

class DirectAccess {
 public:
  explicit DirectAccess(Graph& graph) : graph_(graph) {}

  void run() {
    rewrite(graph_.step);
    rewrite(graph_.repair);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      Op& op = graph_.step.ops[i];
      if (op.kind != OpKind::kCommit) continue;
      graph_.commit = static_cast<OpId>(i);
      // It held the staging of its repair.
      std::erase_if(op.accesses, [&](const Access& access) { return is_gone(access.tensor); });
    }
  }

 private:
  void rewrite(Program& program) {
    std::vector<Op>& ops = program.ops;
    std::vector<bool> dropped(ops.size(), false);
    for (size_t i = 0; i < ops.size(); ++i) {
      if (!moves_parameters(graph_, ops[i])) continue;
      const bool out = std::get<CopyWork>(ops[i].work).direction == CopyDirection::kDeviceToHost;
      dropped[i] = out ? pack_instead(ops, i) : unpack_instead(ops, i);
    }
    size_t at = 0;
    std::erase_if(ops, [&](const Op&) { return dropped[at++]; });
  }

  // True where the copy is done by the kernel that packed what it takes; else it becomes one.
  bool pack_instead(std::vector<Op>& ops, size_t copy) {
    const Access packed = *first_of(ops[copy], Role::kSource);
    size_t before = copy;
    while (before-- > 0 && !writes_to(ops[before], packed.tensor)) {
    }
    const bool is_packed = before < copy && ops[before].kind == OpKind::kPack;
    if (!is_packed) {
      become_kernel(ops[copy], OpKind::kPack);
      return false;
    }
    Op& pack = ops[before];
    replace(pack, Role::kDestination, those_of(ops[copy], Role::kDestination));
    auto& work = std::get<BucketWork>(pack.work);
    work.to_host = bytes_of(work.elements, work.to);
    CHECK(work.to_host == std::get<CopyWork>(ops[copy].work).bytes);
    const auto norm = std::find_if(ops.begin() + static_cast<std::ptrdiff_t>(copy) + 1, ops.end(),
                                   [&](const Op& op) { return sums(op, packed.tensor); });
    if (norm != ops.end()) sum_what_it_packs(*norm, pack);
    drop(packed.tensor);
    return true;
  }

  static bool sums(const Op& op, TensorId tensor) {
    return op.kind == OpKind::kSumOfSquares && first_of(op, Role::kSource)->tensor == tensor;
  }

  // The same values.
  static void sum_what_it_packs(Op& norm, const Op& pack) {
    const DType type = std::get<BucketWork>(pack.work).from;
    auto& work = std::get<BucketWork>(norm.work);
    work.from = type;
    work.moved = bytes_of(work.elements, type);
    replace(norm, Role::kSource, those_of(pack, Role::kSource));
  }

  // True where the copy is done by the kernel that unpacks what it brings; else it becomes one.
  bool unpack_instead(std::vector<Op>& ops, size_t copy) {
    const Access* const staging = first_of(ops[copy], Role::kDestination);
    const size_t next = copy + 1;
    const Access* const unpacked = next < ops.size() && ops[next].kind == OpKind::kUnpack
                                       ? first_of(ops[next], Role::kSource)
                                       : nullptr;
    if (unpacked == nullptr || unpacked->tensor != staging->tensor) {
      become_kernel(ops[copy], OpKind::kUnpack);
      return false;
    }
    auto& work = std::get<BucketWork>(ops[next].work);
    work.from_host = std::get<CopyWork>(ops[copy].work).bytes;
    drop(staging->tensor);
    replace(ops[next], Role::kSource, those_of(ops[copy], Role::kSource));
    return true;
  }

  void become_kernel(Op& op, OpKind kind) {
    const auto copy = std::get<CopyWork>(op.work);
    const bool out = copy.direction == CopyDirection::kDeviceToHost;
    const Access* const here = first_of(op, out ? Role::kSource : Role::kDestination);
    const DType type = graph_.tensor(here->tensor).dtype;
    BucketWork work = elementwise(copy.bytes.count / size_of(type), type, type, Site::kGpu);
    (out ? work.to_host : work.from_host) = copy.bytes;
    op.kind = kind;
    op.work = work;
  }

  void drop(TensorId tensor) {
    gone_.resize(graph_.tensors.size(), false);
    gone_[static_cast<size_t>(tensor)] = true;
  }
  bool is_gone(TensorId tensor) const {
    return static_cast<size_t>(tensor) < gone_.size() && gone_[static_cast<size_t>(tensor)];
  }

  Graph& graph_;
  std::vector<bool> gone_;  // by tensor: staging that nothing fills
};

}  // namespace

Graph direct_access_pass(Graph graph) {
  DirectAccess(graph).run();
  return graph;
}

}  // namespace ballast
