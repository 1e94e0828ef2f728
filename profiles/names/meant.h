// Which shipped file, or file of a local cache, somebody means who writes a name otherwise than we
// do: a Hugging Face id, a part of a machine's name.
//
// Will not do: read what the files hold, or print the note (cli/flags/arguments.h).
#pragma once

#include <string>

namespace ballast {

struct Meant {
  std::string name;  // of a shipped file, or a path: what load_model() and the others take
  std::string note;  // which file was taken, where the name did not say it; else empty
};

// kind: "models", "machines", "strategies", "stacks". A name that is shipped or a file stands for
// itself, and so does one that cannot be told: loading it says which are near.
//
// Models: an id of Hugging Face ("meta-llama/Llama-3.1-8B") means its config.json in the local
// cache of the Hub ($HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME or ~/.cache/huggingface/hub), else
// the shipped model of its last part: capitals, "Meta-" in front and endings such as "-Instruct"
// do not count. Machines: a part of one shipped name ("4090") means that machine.
Meant meant_by(const std::string& text, const std::string& kind);

// "org/name": an owner and a name, and no path of a file or a folder that is there.
bool is_hub_id(const std::string& text);
// The last part of a path or an id.
std::string last_part(const std::string& text);
// The model's name where `file` is a config.json in a cache of the Hub; else empty.
std::string name_in_hub_cache(const std::string& file);

}  // namespace ballast
