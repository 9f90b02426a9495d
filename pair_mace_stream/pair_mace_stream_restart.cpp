/* ----------------------------------------------------------------------
   pair_style mace/stream: what restart files hold.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#include "pair_mace_stream_impl.h"

#include "comm.h"
#include "error.h"
#include "force.h"
#include "utils.h"

using namespace LAMMPS_NS;
using mace_stream::Facts;

static constexpr char KEYWORDS[] = "keywords";

/* ----------------------------------------------------------------------
   A name and a value per line, behind the number of characters: keywords
   of the style, model, SHA-256, head, precision, elements. On rank 0.
------------------------------------------------------------------------- */

void PairMACEStream::write_restart_settings(FILE *fp)
{
  Facts facts = impl->record;
  facts[KEYWORDS] = impl->words;
  std::string text;
  for (const auto &[name, value] : facts) text += name + " " + value + "\n";
  const int length = static_cast<int>(text.size());
  fwrite(&length, sizeof(int), 1, fp);
  fwrite(text.data(), 1, length, fp);
}

/* ----------------------------------------------------------------------
   Takes over the keywords and remembers the rest. The model is for the
   next `pair_coeff` to read: its path may be another one here.
------------------------------------------------------------------------- */

void PairMACEStream::read_restart_settings(FILE *fp)
{
  int length = 0;
  if (comm->me == 0) utils::sfread(FLERR, &length, sizeof(int), 1, fp, nullptr, error);
  MPI_Bcast(&length, 1, MPI_INT, 0, world);
  std::string text(length, ' ');
  if (comm->me == 0) utils::sfread(FLERR, &text[0], 1, length, fp, nullptr, error);
  MPI_Bcast(&text[0], length, MPI_CHAR, 0, world);

  Facts facts;
  for (const auto &line : utils::split_lines(text)) {
    const auto blank = line.find(' ');
    facts[line.substr(0, blank)] = line.substr(blank + 1);
  }
  auto words = utils::split_words(facts[KEYWORDS]);
  std::vector<char *> arguments;
  for (auto &word : words) arguments.push_back(&word[0]);
  settings(static_cast<int>(arguments.size()), arguments.data());
  facts.erase(KEYWORDS);
  impl->restarted = facts;
  impl->continues = true;
  if (comm->me == 0) utils::logmesg(lmp, restart_report());
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::write_restart(FILE *fp)
{
  write_restart_settings(fp);
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::read_restart(FILE *fp)
{
  read_restart_settings(fp);
}

/* ---------------------------------------------------------------------- */

std::string PairMACEStream::restart_report() const
{
  const Facts &was = impl->restarted;
  std::string text = "  written with pair_style mace/stream " + impl->words + "\n";
  if (was.empty()) return text + "  without a model\n";
  for (const auto &[name, value] : was) text += fmt::format("    {:<14} {}\n", name, value);
  return text + fmt::format("  add the line: pair_coeff * * {}{} {}\n",
                            force->pair == this ? "" : "mace/stream ", was.at("model"),
                            was.at("elements"));
}

/* ----------------------------------------------------------------------
   A run that goes on from a restart file has the same model. With a new
   `pair_style` line the input has chosen anew, and is only told.
------------------------------------------------------------------------- */

void PairMACEStream::compare_with_restart() const
{
  for (const auto &[name, was] : impl->restarted) {
    const std::string &now = impl->record[name];
    if (name == "model" || was == now) continue;
    if (impl->continues && name == "SHA-256")
      error->all(FLERR,
                 "Pair style mace/stream: the restart file was written with another model, {}, "
                 "SHA-256 {}; this one has {}; give that file to pair_coeff, or add a line "
                 "'pair_style mace/stream' after read_restart to go on with this one",
                 impl->restarted["model"], was, now);
    if (comm->me == 0)
      error->warning(FLERR,
                     "Pair style mace/stream: the restart file was written with {} {}, this run "
                     "goes on with {}",
                     name, was, now);
  }
}
