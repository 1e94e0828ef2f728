#include "cli/text/listing.h"

namespace ballast {

int run_models(Words words) {
  return run_listing("models", words,
                     {.all = shipped_models,
                      .show = [](const std::string& name) { return model_json(load_model(name)); }},
                     nullptr);
}

}  // namespace ballast
