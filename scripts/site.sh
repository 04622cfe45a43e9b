#!/usr/bin/env bash
# README and docs/ as a site in build/site, by mkdocs, with search. The navigation is that of docs/README.md.
#   scripts/site.sh [serve]
source "$(dirname "$0")/env.sh"

command -v mkdocs >/dev/null || die "mkdocs is missing: apt-get install mkdocs, or pip install mkdocs"
pages=build/site-pages
rm -rf "$pages"
mkdir -p "$pages"
# Links between pages stay as they are; they also lead to examples, tables and READMEs of folders.
cp -r README.md LICENSE docs examples validation "$pages"
cat >"$pages.yml" <<YAML
site_name: dhelix
docs_dir: site-pages
site_dir: site
theme: readthedocs
use_directory_urls: false
plugins: [search]
$(python3 scripts/site_nav.py)
YAML
case ${1:-build} in
serve) mkdocs serve --config-file "$pages.yml" ;;
*) mkdocs build --quiet --config-file "$pages.yml" && echo "build/site/index.html" ;;
esac
