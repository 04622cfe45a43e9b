#!/usr/bin/env bash
# README and docs/ as a site in build/site, by mkdocs.
#   scripts/site.sh [serve]
source "$(dirname "$0")/env.sh"

command -v mkdocs >/dev/null || die "mkdocs is missing: apt-get install mkdocs, or pip install mkdocs"
pages=build/site-pages
rm -rf "$pages"
mkdir -p "$pages"
# The links between pages stay as they are; examples and tables are linked too.
cp -r README.md LICENSE docs examples validation "$pages"
cat >"$pages.yml" <<YAML
site_name: dhelix
docs_dir: site-pages
site_dir: site
theme: readthedocs
use_directory_urls: false
nav:
  - dhelix: README.md
  - Training: docs/training.md
  - Planning: docs/planning.md
  - Exported orders: docs/plan-export.md
  - Hiding communication: docs/hiding.md
  - Strategies compared: docs/rows.md
  - Validation: docs/validation.md
  - Library: docs/library.md
  - Python: docs/python.md
  - "Other projects' words": docs/words.md
  - Architecture: docs/architecture.md
  - Glossary: docs/glossary.md
  - Paper map: docs/paper-map.md
  - Tolerances: docs/tolerances.md
  - Limits: docs/limits.md
  - GPUs: docs/cuda.md
  - Status: docs/status.md
  - Development: docs/development.md
YAML
case ${1:-build} in
serve) mkdocs serve --config-file "$pages.yml" ;;
*) mkdocs build --quiet --config-file "$pages.yml" && echo "build/site/index.html" ;;
esac
