// The order of what the search finds: a page that answers what was typed, then pages whose title has it; pages that teach
// before the reference, and what tells of the past last.
const WORDS = {
  "learn/quickstart": "install installation setup pip start",
  "reference/cite": "cite citation citing bibtex doi",
  "learn/choose": "which kernel design scale best",
  "learn/read_your_model": "use my own yarn config json load model",
  "learn/check_your_engine": "does vllm sglang llama engine do the same correct",
  "howto/axes": "rotate images image vision pixels video 2d 3d",
  "learn/extend": "extend to 32k 64k 128k longer context window"
}; // what readers type for a page; conf.py puts these words into the index
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
    const typed = plain(new URLSearchParams(location.search).get("q") || ""), named = plain(title);
    if (page === "project/changelog") return score - 1000;
    const asked = typed.split(" "), meant = (WORDS[page] || "").split(" "), all = asked.every((one) => meant.includes(one));
    const first = named === typed ? 200 : named.startsWith(typed) ? 150 : ` ${named} `.includes(` ${typed} `) ? 100 : 0;
    const kind = page.startsWith("reference/generated/") ? -10 : page.startsWith("gallery/") ? -15 : 0;
    const dry = ["project/benchmarks", "project/reliability", "explain/proofs", "explain/proofs_polar", "explain/proofs_bounds", "search", "genindex"];
    return score + (all && !anchor ? 300 : first) + kind + (dry.includes(page) ? -40 : 0);
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
