// Clusters: which machine a published source ran on, where its cases name one like it and the
// source itself, or its authors elsewhere, say more of the nodes and the wires between them.
//
// By a word of the source's name, each with where that is said.
// Will not do: know what no source of the authors says.
#pragma once

#include <string>

namespace ballast {

// The name of a machine: `named`, or the one that a source which cases call `named` stands for.
std::string cluster_of(const std::string& named, const std::string& source);

}  // namespace ballast
