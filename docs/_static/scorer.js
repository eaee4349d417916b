// The order of what the search finds: a page whose title has the words that were typed comes first, pages that teach before
// the reference, and what tells of the past last.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
    const typed = plain(new URLSearchParams(location.search).get("q") || ""), named = plain(title);
    if (page === "changelog") return score - 1000;
    const first = named === typed ? 200 : named.startsWith(typed) ? 150 : ` ${named} `.includes(` ${typed} `) ? 100 : 0;
    const kind = page.startsWith("api/") ? -10 : page.startsWith("gallery/") ? -15 : 0;
    const dry = ["benchmarks", "reliability", "errata", "proofs", "theorems", "experiments_polar", "search", "genindex"];
    return score + first + kind + (dry.includes(page) ? -40 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
