#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes the sources of the site, or checks the site.

site.py make PROBE BOOK    the book's sources: the pages of the repository, and one page for each check, from the codes that
                           PROBE, a gda-probe, explains
site.py check SITE         every link within the site leads to a file, and to an anchor of it
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The pages of the checks are folded in the list of pages.
BOOK = """[book]
title = "efa-gda"

[output.html]
default-theme = "light"
additional-css = ["site.css"]

[output.html.fold]
enable = true
level = 0
"""
# A wide table scrolls within the page, also on a phone.
STYLE = "main table { display: block; max-width: 100%; overflow-x: auto; }\n"
FIRST = ["troubleshooting", "checks", "statuses", "containers", "fleets"]


def check_page(code):
    lines = [f"# {code['code']}: {code['title']}", code["text"]]
    for key, title in (("fix", "Usual fix"), ("who", "Who can apply it"), ("action", "Action")):
        if value := code.get(key):
            lines.append(f"**{title}**: {value if isinstance(value, str) else ', '.join(value)}")
    return "\n\n".join(lines) + "\n"


def make(probe, book):
    shutil.rmtree(book, ignore_errors=True)
    source = book / "src"
    (source / "docs/checks").mkdir(parents=True)
    (book / "book.toml").write_text(BOOK)
    (book / "site.css").write_text(STYLE)
    codes = json.loads(subprocess.run([probe, "explain", "--json"], check=True, capture_output=True).stdout)["codes"]
    checks = {code["code"]: code for code in codes if re.match("[A-Z]+-[0-9]{3}$", code["code"])}
    for name, code in checks.items():
        (source / f"docs/checks/{name}.md").write_text(check_page(code))
    docs = sorted((ROOT / "docs").glob("*.md"), key=lambda page: (page.stem not in FIRST, page.stem))
    summary = ["[efa-gda](README.md)", ""]
    for page in [ROOT / "README.md", *docs, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]:
        path, text = page.relative_to(ROOT), page.read_text()
        if page.stem != "README":
            summary.append(f"- [{re.match('# (.*)', text)[1]}]({path})".replace("`", ""))
        if page.stem == "checks":
            # The site has a page for each check; links to a check's heading lead there.
            links = [f"- [{name}: {code['title']}](checks/{name}.md)" for name, code in checks.items()]
            text = text[: text.index("\n## ENV: ")] + "\n## All checks\n\n" + "\n".join(links) + "\n"
            summary += [f"  - [{code}](docs/checks/{code}.md)" for code in checks]
        text = re.sub(r"\]\((?!https?:)([^)#\s]*)([^)\s]*)\)", lambda match: link(match, page, source), text)
        (source / path).write_text(text)
    (source / "SUMMARY.md").write_text("\n".join(summary) + "\n")


def link(match, page, source):
    """A link as the site has it. Files and directories that are no pages are copied as texts."""
    path, anchor = match[1], match[2]
    if code := re.match(r"#([a-z]+-[0-9]{3})-", anchor):
        return f"]({(path or page.name)[:-3]}/{code[1].upper()}.md)"
    target = (page.parent / path).resolve() if path else page
    if target == ROOT / "README.md":
        # mdBook names this page index.html, and does not follow links to it.
        return f"]({path[:-len('README.md')]}index.html{anchor})"
    if target.suffix == ".md" and target.parent in (ROOT, ROOT / "docs"):
        return match[0]
    files = [target] if target.is_file() else sorted(file for file in target.rglob("*") if file.is_file())
    # mdBook takes README.md.txt for a page.
    copy = source / f"{target.relative_to(ROOT)}.txt".replace(".md.txt", ".txt")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text("".join(f"==== {file.relative_to(ROOT)}\n{file.read_text()}\n" for file in files))
    return f"]({path.rstrip('/')}.txt)".replace(".md.txt", ".txt")


def check(site):
    pages = {file.resolve(): file.read_text() for file in site.rglob("*.html")}
    wrong, count = [], 0
    for file, text in pages.items():
        # print.html and toc.html repeat the links of the other pages.
        if file.name in ("404.html", "print.html", "toc.html"):
            continue
        for path, anchor in re.findall(r'<a [^>]*href="(?!\w+:)([^"#]*)#?([^"]*)"', text):
            count += 1
            target = (file.parent / path).resolve() if path else file
            if not target.exists() or anchor and f'id="{anchor}"' not in pages[target]:
                wrong.append(f"{file.relative_to(site.resolve())}: {path}#{anchor}")
    assert count > 500, f"only {count} links were found"
    assert not wrong, "links that lead nowhere:\n" + "\n".join(sorted(wrong))
    print(f"{count} links of {len(pages)} pages")


if sys.argv[1] == "make":
    make(sys.argv[2], pathlib.Path(sys.argv[3]))
else:
    check(pathlib.Path(sys.argv[2]))
