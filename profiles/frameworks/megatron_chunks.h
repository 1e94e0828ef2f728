// Megatron-LM's flags for the layers of a pipeline: chunks a stage, and embedding and loss that
// count as a layer each (megatron/training/arguments.py, validate_args; megatron/core/transformer/
// transformer_block.py, get_num_layers_to_build).
//
// Only sources of this folder include this header.
#pragma once

#include "profiles/frameworks/options.h"

namespace ballast {

void write_megatron_chunks(OrderedJson& out, const Plan& plan, const Model& model);
// Sets plan.virtual_pipeline; plan.pipeline is known. Throws Error where layers do not divide as
// the flags say, or where they say what no plan does.
void read_megatron_chunks(OptionReader& reader, Plan& plan, const Model& model);

}  // namespace ballast
