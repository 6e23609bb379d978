// Requests to the service that this page came from.
const KEY = "vaiom-key";

export class Refused extends Error {
  constructor(status, error) {
    super([error.problem, error.fix].filter(Boolean).join(": "));
    this.status = status;
  }
}

export const useKey = (key) => sessionStorage.setItem(KEY, key);

export async function get(path) {
  const key = sessionStorage.getItem(KEY);
  const answer = await fetch(path, { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  const body = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, body.error);
  return body;
}
