// What a reader of the text notices: the verdict on a language model in tokens.

import { Empty, Loaded } from "../components/Status.tsx";
import { formatNumber, plural } from "../format.ts";
import type { Tokens } from "../records.ts";
import * as state from "../state.ts";
import { figures, inLine, tokenColor } from "../tokens.ts";

export function TokensView() {
  if (!state.has("tokens")) return <NoTokens />;
  return (
    <Loaded of={state.record("tokens")} what="the tokens">
      {({ rows }) => (rows[0] ? <Verdict tokens={rows[0]} /> : <NoTokens />)}
    </Loaded>
  );
}

function Verdict({ tokens }: { tokens: Tokens }) {
  return (
    <section class="view tk" aria-label="Tokens">
      <p class="muted">
        {plural(tokens.count, "token")} of {plural(tokens.sequences, "sequence")}, scores of{" "}
        <button type="button" class="link" onClick={() => state.openOp(tokens.op)}>
          {tokens.op}
        </button>
        {tokens.left_out ? `; ${plural(tokens.left_out, "token")} left out, whose scores are no finite numbers` : ""}
      </p>
      <dl class="tk-figures">
        {figures(tokens).map(({ label, value, interval, help }) => (
          <div key={label} title={help}>
            <dt>{label}</dt>
            <dd>{value}</dd>
            {interval && <dd class="muted">{interval}</dd>}
          </div>
        ))}
      </dl>
      <Worst tokens={tokens} />
      <Texts tokens={tokens} />
      <div class="tk-means">
        <Means title="By the token that was read last" what="token" rows={tokens.by_token ?? []} />
        <Means title="By position" what="position" rows={tokens.by_position ?? []} />
      </div>
    </section>
  );
}

function Worst({ tokens: { worst = [] } }: { tokens: Tokens }) {
  if (!worst.length) return null;
  return (
    <>
      <h2>Where the two models are furthest apart</h2>
      <div class="tk-scroll">
        <table aria-label="Worst tokens">
          <thead>
            <tr>
              <th scope="col">behind</th>
              <th scope="col">KL, nats</th>
              <th scope="col">fp32 expects</th>
              <th scope="col">quantized expects</th>
              <th scope="col">in the text</th>
            </tr>
          </thead>
          <tbody>
            {worst.map((place) => (
              <tr key={`${place.sequence} ${place.position}`}>
                <th scope="row" title={`sequence ${place.sequence}, position ${place.position}`}>
                  …{inLine(place.before)}
                </th>
                <td style={{ background: tokenColor(place.kl) }}>{formatNumber(place.kl)}</td>
                <td>{inLine(place.reference)}</td>
                <td>{inLine(place.quantized)}</td>
                <td>{inLine(place.actual ?? "")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Texts({ tokens: { texts = [], kind } }: { tokens: Tokens }) {
  if (!texts.length) return null;
  const about = kind === "masked" ? "each token" : "each token from those before it";
  return (
    <>
      <h2>The text</h2>
      <p class="muted">Colored by how far the two models are apart about {about}: none below 0.01 nats, red at 10.</p>
      {texts.map((text) => (
        <p key={text.sequence} class="tk-text">
          {text.words.map((word, i) => {
            const kl = text.kl[i] ?? null;
            return (
              <span
                key={i}
                style={{ background: tokenColor(kl) }}
                title={kl === null ? undefined : `${formatNumber(kl)} nats`}
              >
                {word}
              </span>
            );
          })}
        </p>
      ))}
    </>
  );
}

function Means({ title, what, rows }: { title: string; what: string; rows: NonNullable<Tokens["by_token"]> }) {
  if (!rows.length) return null;
  return (
    <div>
      <h2>{title}</h2>
      <table aria-label={title}>
        <thead>
          <tr>
            <th scope="col">{what}</th>
            <th scope="col">count</th>
            <th scope="col">KL, nats</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.what}>
              <th scope="row">{inLine(row.what)}</th>
              <td>{formatNumber(row.count, "count")}</td>
              <td style={{ background: tokenColor(row.kl) }}>{formatNumber(row.kl)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function NoTokens() {
  return (
    <Empty title={`${state.run.value} holds no verdict in tokens`}>
      <p>It is there for language models: models that get input_ids and give a score for each token. Diagnose one:</p>
      <pre>inc-tb diagnose FP32_FOLDER INT8_FOLDER --text text.txt --logdir nc_workspace</pre>
    </Empty>
  );
}
