// Probabilities of the next token after each of given tokens, by llama.cpp, for each of given GGUF files.
// node llama_cpp.mjs < {"files": [...], "tokens": [...], "size": vocabulary, "context": n}  > [{"rows": [[...], ...]} or {"error": "..."}, ...]
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import fs from "node:fs";
import path from "node:path";

const folder = process.env.RFROPE_NODE_MODULES;
const entry = createRequire(path.join(folder, "x.js")).resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(entry).href);
const {files, tokens, size, context} = JSON.parse(fs.readFileSync(0, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", progressLogs: false});
const found = [];
for (const file of files) {
    try {
        const model = await llama.loadModel({modelPath: file, gpuLayers: 0});
        const room = await model.createContext({contextSize: context, threads: 1});
        const sequence = room.getSequence();
        const options = {temperature: 1, topK: size, topP: 1, minP: 0};
        const asked = tokens.map((token) => [token, {generateNext: {probabilities: true, options}}]);
        const answers = await sequence.controlledEvaluate(asked);
        found.push({rows: answers.map(({next}) => {
            const row = new Array(size).fill(0);
            for (const [token, probability] of next.probabilities) row[token] = probability;
            return row;
        })});
        await model.dispose();
    } catch (error) {
        found.push({error: String(error?.message ?? error)});
    }
}
await new Promise((done) => process.stdout.write(JSON.stringify(found), done));
process.exit(0);
